#include "actors/template_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "actors/run_plan.h"
#include "actors/run_setup.h"
#include "tests/actors/tiny_run.h"
#include "tests/data/shards.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What `percheron prepare` writes for these folders; tests/prepare/test_chat_template.py has the
// same hashes.
constexpr const char* kQwen = "3b5587f923960e6d235945d2ba21b4183cc21d62ec0efaafd26677c79704c2f2";
constexpr const char* kLlama = "c9e0d21bca5c82876e0769aead23809440981ec36193caf6345d3a5d96a63a6a";
constexpr const char* kOddTexts =
    "b07edf1727b8cacedb9ed8b528d2a742ea7545f65e4fdc85e61293e0f198158a";
constexpr const char* kNoTokens =
    "51ae30adbe70d58c369d839719d90c9fa1706191639a5ad2d352247032bc27ba";

std::string golden(const std::string& family) { return "tests/golden_data/chat/" + family; }

std::string target_with(const std::string& config) {
  const std::string directory = fresh_directory("template_check");
  write_file(join_path(directory, "tokenizer_config.json"), config);
  return directory;
}

void expect_taken(const std::string& target, const std::string& hash) {
  const auto note = check_template(system_files(), target, hash, "shard");
  ASSERT_TRUE(note.ok()) << note.status().message();
  EXPECT_EQ(*note, "");
}

TEST(TemplateCheck, TakesTheTemplateThatTheDataWasRenderedWith) {
  expect_taken(golden("qwen2.5"), kQwen);
  expect_taken(golden("llama3"), kLlama);
}

TEST(TemplateCheck, SpellsTextsAsPythonDoes) {
  const std::string config =
      R"({"eos_token": "</s>", "bos_token": {"content": "<sé>", "lstrip": false}, "pad_token": null,
          "add_bos_token": true, "chat_template": "é\u007f\t\"\\\u2028\ud83d\ude00/{{ messages }}\n"})";
  expect_taken(target_with(config), kOddTexts);
}

TEST(TemplateCheck, ReadsTheTemplateFileFirstAndTheDefaultOfSeveral) {
  const std::string named =
      R"({"chat_template": [{"name": "tool_use", "template": "{{ y }}"},
                            {"name": "default", "template": "{{ x }}"}]})";
  const std::string target = target_with(named);
  expect_taken(target, kNoTokens);
  write_file(join_path(target, "tokenizer_config.json"), R"({"chat_template": "{{ y }}"})");
  EXPECT_FALSE(check_template(system_files(), target, kNoTokens, "shard").ok());
  write_file(join_path(target, "chat_template.jinja"), "{{ x }}");
  expect_taken(target, kNoTokens);
}

// SpecForge#551, #552: another prompt in serving than in training.
TEST(TemplateCheck, RefusesAnotherModelsTemplateWithBothHashes) {
  const auto note = check_template(system_files(), golden("qwen2.5"), kLlama, "data.train (x)");
  ASSERT_FALSE(note.ok());
  EXPECT_THAT(note.status().message(),
              AllOf(HasSubstr("data.train (x)"), HasSubstr(kLlama), HasSubstr(kQwen),
                    HasSubstr(golden("qwen2.5")), HasSubstr("prepare it again")));
}

TEST(TemplateCheck, RefusesAConfigThatIsNoJsonObject) {
  for (const char* config : {"{\"chat_template\": ", "[]"}) {
    const auto note = check_template(system_files(), target_with(config), kQwen, "shard");
    ASSERT_FALSE(note.ok());
    EXPECT_THAT(note.status().message(), HasSubstr("tokenizer_config.json"));
  }
}

TEST(TemplateCheck, SaysWhatItCouldNotCompare) {
  auto note = check_template(system_files(), golden("qwen2.5"), "tmpl", "shard");
  ASSERT_TRUE(note.ok()) << note.status().message();
  EXPECT_THAT(*note, AllOf(HasSubstr("shard"), HasSubstr("'tmpl'"), HasSubstr("not checked")));
  for (const char* config : {"{}", R"({"chat_template": null})", R"({"chat_template": [5]})"}) {
    note = check_template(system_files(), target_with(config), kQwen, "shard");
    ASSERT_TRUE(note.ok()) << note.status().message();
    EXPECT_THAT(*note, AllOf(HasSubstr("has no chat template"), HasSubstr("not checked")));
  }
}

TEST(TemplateCheck, ARunIsRefusedBeforeItStarts) {
  const proto::Run run = make_tiny_run("foreign_template");
  auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  const auto plan = plan_run(**setup, system_files());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_THAT(plan->text(), HasSubstr("has no chat template"));

  ShardParts parts(rows_of_lengths({8, 9}));
  parts.passport.vocab_size = 94;
  for (uint32_t& token : parts.tokens) token %= 90;
  parts.passport.template_hash = kNoTokens;
  ASSERT_TRUE(parts.write(system_files(), run.data().train(0)).ok());
  const std::string jinja = join_path(run.target().path(), "chat_template.jinja");
  write_file(jinja, "{{ y }}");
  setup = resolve_run(run, system_files());
  ASSERT_FALSE(setup.ok());
  EXPECT_THAT(setup.status().message(),
              AllOf(HasSubstr(run.data().train(0)), HasSubstr("prepare it again")));
  write_file(jinja, "{{ x }}");
  setup = resolve_run(run, system_files());
  EXPECT_TRUE(setup.ok()) << setup.status().message();
}

}  // namespace
}  // namespace percheron

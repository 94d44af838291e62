#include "actors/tokenizer_check.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "actors/run_plan.h"
#include "actors/run_setup.h"
#include "data/sha256.h"
#include "tests/actors/tiny_run.h"
#include "tests/data/shards.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

constexpr const char* kTokenizer = R"({"model": {"vocab": {"a": 1, "b": 2}}})";
constexpr const char* kSwapped = R"({"model": {"vocab": {"a": 2, "b": 1}}})";

std::string hash_of(const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); }

std::string target_with(const std::string& tokenizer) {
  const std::string directory = fresh_directory("tokenizer_check");
  write_file(join_path(directory, "tokenizer.json"), tokenizer);
  return directory;
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(TokenizerCheck, TakesTheTokenizerThatTheDataWasPreparedWith) {
  const auto note =
      check_tokenizer(system_files(), target_with(kTokenizer), hash_of(kTokenizer), "shard");
  ASSERT_TRUE(note.ok()) << note.status().message();
  EXPECT_EQ(*note, "");
}

TEST(TokenizerCheck, RefusesTwoSwappedIdsWithBothHashes) {
  const auto note =
      check_tokenizer(system_files(), target_with(kSwapped), hash_of(kTokenizer), "data.train (x)");
  ASSERT_FALSE(note.ok());
  expect_parts(note.status().message(), {"data.train (x)", hash_of(kTokenizer), hash_of(kSwapped),
                                         "tokenizer.json", "prepare it again"});
}

TEST(TokenizerCheck, RefusesATokenizerThatIsNoJson) {
  const auto note = check_tokenizer(system_files(), target_with("{\"model\": "), "tok", "shard");
  ASSERT_FALSE(note.ok());
  expect_parts(note.status().message(), {"tokenizer.json"});
}

TEST(TokenizerCheck, SaysWhatItCouldNotCompare) {
  auto note = check_tokenizer(system_files(), target_with(kTokenizer), "tok", "shard");
  ASSERT_TRUE(note.ok()) << note.status().message();
  expect_parts(*note, {"shard", "'tok'", "not checked"});
  note = check_tokenizer(system_files(), fresh_directory("none"), hash_of(kTokenizer), "shard");
  ASSERT_TRUE(note.ok()) << note.status().message();
  expect_parts(*note, {"tokenizer.json does not exist", "no answers"});
}

// Training once went to its end on data of another tokenizer.
TEST(TokenizerCheck, ARunIsRefusedBeforeItStarts) {
  const proto::Run run = make_tiny_run("foreign_tokenizer");
  auto setup = resolve_run(run, system_files());
  ASSERT_TRUE(setup.ok()) << setup.status().message();
  const auto plan = plan_run(**setup, system_files());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  expect_parts(plan->text(), {"tokenizer.json does not exist"});

  ShardParts parts(rows_of_lengths({8, 9}));
  parts.passport.vocab_size = 94;
  for (uint32_t& token : parts.tokens) token %= 90;
  parts.passport.tokenizer_hash = hash_of(kTokenizer);
  ASSERT_TRUE(parts.write(system_files(), run.data().train(0)).ok());
  const std::string tokenizer = join_path(run.target().path(), "tokenizer.json");
  write_file(tokenizer, kSwapped);
  setup = resolve_run(run, system_files());
  ASSERT_FALSE(setup.ok());
  expect_parts(setup.status().message(), {run.data().train(0), "prepare it again"});
  write_file(tokenizer, kTokenizer);
  setup = resolve_run(run, system_files());
  EXPECT_TRUE(setup.ok()) << setup.status().message();
}

}  // namespace
}  // namespace percheron

#include "model/drafter_config.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file_system.h"
#include "base/random.h"
#include "tests/model/toy_model.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using nlohmann::json;

const std::string kConfigs = "tests/golden_data/drafter_configs/";

json eagle3_json() { return json::parse(read_file(kConfigs + "qwen3-8b-eagle3.json")); }
json dflash_json() { return json::parse(read_file(kConfigs + "qwen3-8b-dflash.json")); }

Result<StatedDrafter> parse(const json& object) {
  return parse_drafter_config(object.dump(), "config.json");
}

// The message of a refusal; empty, with a failure, when it was accepted.
std::string refusal(const json& object) {
  const Result<StatedDrafter> stated = parse(object);
  EXPECT_FALSE(stated.ok());
  if (stated.ok()) return "";
  EXPECT_EQ(stated.status().code(), StatusCode::kInvalidArgument);
  return stated.status().message();
}

ModelConfig qwen3_8b() {
  ModelConfig target;
  target.model_type = "qwen3";
  target.hidden_size = 4096;
  target.intermediate_size = 12288;
  target.num_hidden_layers = 36;
  target.num_attention_heads = 32;
  target.num_key_value_heads = 8;
  target.head_dim = 128;
  target.vocab_size = 151936;
  target.max_position_embeddings = 40960;
  target.qk_norm = true;
  target.rope.theta = 1e6;
  target.rope.original_max_position_embeddings = 40960;
  target.bos_token_id = 151643;
  target.eos_token_ids = {151645, 151643};
  return target;
}

DrafterConfig derived(const DrafterChoice& choice) {
  const Result<DrafterConfig> config = derive_drafter_config(qwen3_8b(), choice);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : DrafterConfig();
}

ConfigExport speculators() {
  return {DrafterLayout::kSpeculators, "Qwen/Qwen3-8B", "Qwen3ForCausalLM", 3};
}

json written(const DrafterConfig& config, const ConfigExport& options = {}) {
  const Result<std::string> text = drafter_config_text(config, options);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? json::parse(*text) : json();
}

// The configurations that peers publish: read, or refused with the key and its value.
TEST(DrafterConfig, OfEveryPublishedDrafterIsReadOrRefusedByName) {
  const std::map<std::string, std::string> refused = {
      {"glm-5.2-dspark.json", "DSparkDraftModel"},
      {"inkling-dspark.json", "DSparkDraftModel"},
      {"qwen3-8b-dspark.json", "DSparkDraftModel"},
      {"qwen3.6-27b-dspark.json", "DSparkDraftModel"},
      {"qwen3-8b-domino.json", "DominoDraftModel"},
      {"qwen3.5-4b-domino.json", "DominoDraftModel"},
      {"qwen3.6-27b-domino-full-attention.json", "DominoDraftModel"},
      {"qwen3-8b-peagle.json", "PEagleDraftModel"},
      {"qwen2-5-vl-7b-eagle3.json", "mrope"},
      {"qwen2.5-vl-32b-eagle3.json", "mrope"},
  };
  const std::vector<std::string> names = system_files().list(kConfigs).value();
  EXPECT_EQ(names.size(), 35u);
  for (const std::string& name : names) {
    const Result<StatedDrafter> stated = parse_drafter_config(read_file(kConfigs + name), name);
    const auto wanted = refused.find(name);
    if (wanted == refused.end()) {
      EXPECT_TRUE(stated.ok()) << stated.status().message();
      continue;
    }
    ASSERT_FALSE(stated.ok()) << name;
    EXPECT_NE(stated.status().message().find(wanted->second), std::string::npos)
        << stated.status().message();
    EXPECT_EQ(stated.status().message().find(name), 0u);
  }
}

TEST(DrafterConfig, OfTheQwen3DflashDrafterHasThePapersLayers) {
  const DrafterConfig config = parse(dflash_json()).value().config;
  EXPECT_EQ(config.kind, DrafterKind::kDflash);
  EXPECT_EQ(config.capture, (std::vector<int64_t>{2, 10, 18, 26, 34}));
  EXPECT_EQ(config.num_target_layers, 36);
  EXPECT_EQ(config.block_size, 16);
  EXPECT_EQ(config.mask_token_id, 151669);
  EXPECT_TRUE(config.body.qk_norm);
  EXPECT_EQ(config.body.sliding_window, (std::vector<int64_t>(5, 0)));
  EXPECT_EQ(config.draft_vocab_size, config.body.vocab_size);
}

// EAGLE#223, speculators#134.
TEST(DrafterConfig, TakesHeadDimFromTheFileElseFromTheHeads) {
  json object = eagle3_json();
  object["hidden_size"] = 2560;
  object["head_dim"] = 128;
  EXPECT_EQ(parse(object).value().config.body.head_dim, 128);
  object.erase("head_dim");
  EXPECT_EQ(parse(object).value().config.body.head_dim, 80);
  object["num_attention_heads"] = 48;
  object["num_key_value_heads"] = 8;
  EXPECT_NE(refusal(object).find("head_dim"), std::string::npos);
}

// SpecForge#139, #140: a tied head of a reduced vocabulary would be rebuilt with the target's rows.
TEST(DrafterConfig, RefusesATiedHead) {
  json object = eagle3_json();
  object["tie_word_embeddings"] = true;
  const std::string message = refusal(object);
  EXPECT_NE(message.find("tie_word_embeddings"), std::string::npos);
  EXPECT_NE(message.find("32000"), std::string::npos);
  EXPECT_NE(message.find("151936"), std::string::npos);
}

// vllm#55133.
TEST(DrafterConfig, RefusesADraftVocabularyAboveTheTargets) {
  json object = eagle3_json();
  object["draft_vocab_size"] = 201024;
  EXPECT_NE(refusal(object).find("201024"), std::string::npos);
}

TEST(DrafterConfig, RefusesWhatWouldChangeTheLayers) {
  const std::vector<std::pair<std::string, json>> changes = {
      {"attention_bias", true},     {"mlp_bias", true},      {"hidden_act", "gelu"},
      {"attention_dropout", 0.1},   {"model_type", "gpt2"},  {"num_hidden_layers", 2},
      {"num_key_value_heads", 5},   {"rms_norm_eps", -1},    {"partial_rotary_factor", 0.5},
      {"num_aux_hidden_states", 0}, {"hidden_size", "4096"}, {"vocab_size", -1}};
  for (const auto& [key, value] : changes) {
    json object = eagle3_json();
    object[key] = value;
    EXPECT_NE(refusal(object).find(key), std::string::npos) << key;
  }
  json rope = eagle3_json();
  rope["rope_scaling"] = {{"rope_type", "longrope"}, {"factor", 4.0}};
  EXPECT_NE(refusal(rope).find("longrope"), std::string::npos);
}

// speculators#1065, vllm#54526.
TEST(DrafterConfig, RefusesACountOfStatesThatIsNotThatOfItsLayers) {
  json object = eagle3_json();
  object["eagle_aux_hidden_state_layer_ids"] = {2, 46, 91, 93};
  object["num_aux_hidden_states"] = 3;
  EXPECT_NE(refusal(object).find("num_aux_hidden_states"), std::string::npos);
  object.erase("num_aux_hidden_states");
  EXPECT_EQ(parse(object).value().config.capture.size(), 4u);
}

// speculators#753: one feature has three numbers.
TEST(DrafterConfig, MakesOneMeaningOfEverySpellingOfLayerIds) {
  const std::vector<int64_t> j = {2, 10, 18, 26, 34};
  json top = eagle3_json();
  top["eagle_aux_hidden_state_layer_ids"] = j;
  json nested = eagle3_json();
  nested["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {1, 9, 17, 25, 33};
  json block = dflash_json();
  block.erase("dflash_config");
  block["mask_token_id"] = 7;
  block["target_layer_ids"] = {1, 9, 17, 25, 33};
  for (const json& object : {top, nested, block}) {
    EXPECT_EQ(parse(object).value().config.capture, j);
  }
  nested["eagle_aux_hidden_state_layer_ids"] = {1, 9, 17, 25, 33};
  const std::string message = refusal(nested);
  EXPECT_NE(message.find("[1, 9, 17, 25, 33]"), std::string::npos);
  EXPECT_NE(message.find("[2, 10, 18, 26, 34]"), std::string::npos);
}

// sglang#37475: ids that are left out are guessed by each engine in its own way.
TEST(DrafterConfig, WritesLayerIdsInEverySpellingThatServersRead) {
  DrafterChoice choice;
  choice.capture = {2, 10, 18, 26, 34};
  const json eagle3 = written(derived(choice));
  EXPECT_EQ(eagle3["eagle_aux_hidden_state_layer_ids"], json({2, 10, 18, 26, 34}));
  EXPECT_EQ(eagle3["eagle_config"]["eagle_aux_hidden_state_layer_ids"], json({1, 9, 17, 25, 33}));
  EXPECT_EQ(eagle3["num_aux_hidden_states"], 5);
  choice.kind = DrafterKind::kDflash;
  choice.mask_token_id = 151669;
  const DrafterConfig config = derived(choice);
  EXPECT_EQ(written(config)["dflash_config"]["target_layer_ids"], json({1, 9, 17, 25, 33}));
  EXPECT_EQ(written(config, speculators())["aux_hidden_state_layer_ids"],
            json({2, 10, 18, 26, 34}));
  EXPECT_EQ(parse(written(config)).value().config.capture, choice.capture);
  EXPECT_EQ(parse(written(config, speculators())).value().config.capture, choice.capture);
}

TEST(DrafterConfig, WritesAPlainEagle3WithoutFlagsThatServersMisread) {
  const json object = written(derived({}));
  EXPECT_EQ(object["architectures"], json({"LlamaForCausalLMEagle3"}));
  EXPECT_EQ(object["model_type"], "llama");
  for (const char* key : {"norm_output", "norm_before_fc", "norm_before_residual", "fc_norm",
                          "target_hidden_size", "num_aux_hidden_states"}) {
    EXPECT_FALSE(object.contains(key)) << key;  // SpecForge#879
  }
  EXPECT_EQ(object["draft_vocab_size"], 32000);
  EXPECT_EQ(object["tie_word_embeddings"], false);
  EXPECT_EQ(object["dtype"], "bfloat16");
}

// SpecForge#265, #219, TorchSpec#101, speculators#574.
TEST(DrafterConfig, WritesRopeInAllThreeSpellings) {
  DrafterConfig config = derived({});
  json object = written(config);
  EXPECT_EQ(object["rope_theta"], 1e6);
  EXPECT_EQ(object["rope_parameters"]["rope_theta"], 1e6);
  EXPECT_EQ(object["rope_parameters"]["rope_type"], "default");
  EXPECT_TRUE(object["rope_scaling"].is_null());
  config.body.rope.type = RopeType::kYarn;
  config.body.rope.factor = 4;
  config.body.rope.attention_factor = 1.25;
  config.body.rope.original_max_position_embeddings = 32768;
  object = written(config);
  EXPECT_EQ(object["rope_scaling"]["rope_type"], "yarn");
  EXPECT_EQ(object["rope_parameters"]["factor"], 4.0);
  EXPECT_EQ(parse(object).value().config.body.rope, config.body.rope);
  EXPECT_EQ(parse(written(config, speculators())).value().config.body.rope, config.body.rope);
  config.body.rope = {};
  config.body.rope.type = RopeType::kLlama3;
  config.body.rope.theta = 5e5;
  config.body.rope.factor = 8;
  config.body.rope.original_max_position_embeddings = 8192;
  EXPECT_EQ(parse(written(config)).value().config.body.rope, config.body.rope);
}

TEST(DrafterConfig, SaysInSpeculatorsLayoutThatFullAttentionIsNotCausal) {
  DrafterChoice choice;
  choice.kind = DrafterKind::kDflash;
  choice.mask_token_id = 151669;
  const json full = written(derived(choice), speculators());
  EXPECT_EQ(full["sliding_window_non_causal"], true);  // vllm#56692
  EXPECT_EQ(full["sample_from_anchor"], false);        // SpecForge#473, speculators#760
  EXPECT_EQ(full["speculators_config"]["proposal_methods"][0]["speculative_tokens"], 15);
  choice.sliding_window = 2048;
  choice.sliding_layers = {0, 1, 2, 3, 4};
  const json sliding = written(derived(choice), speculators());
  EXPECT_EQ(sliding["sliding_window_non_causal"], false);
  EXPECT_EQ(sliding["transformer_layer_config"]["sliding_window"], 2048);
  EXPECT_TRUE(parse(sliding).value().config.causal_in_sliding_layers);
  choice.sliding_layers = {0, 1};
  const Result<std::string> mixed = drafter_config_text(derived(choice), speculators());
  ASSERT_FALSE(mixed.ok());
  EXPECT_NE(mixed.status().message().find("--to specforge"), std::string::npos);
}

TEST(DrafterConfig, ReadsAnAbsentNormFlagAsItsFormatMeansIt) {
  json flat = eagle3_json();
  EXPECT_FALSE(parse(flat).value().config.norm_before_residual);
  json nested = written(derived({}), speculators());
  nested.erase("norm_before_residual");
  EXPECT_TRUE(parse(nested).value().config.norm_before_residual);
}

TEST(DrafterConfig, RefusesBlockDraftersOfAnotherKind) {
  json object = dflash_json();
  object["sample_from_anchor"] = true;
  EXPECT_NE(refusal(object).find("sample_from_anchor"), std::string::npos);
  object = dflash_json();
  object["dflash_config"]["logit_softcap"] = 30;
  EXPECT_NE(refusal(object).find("logit_softcap"), std::string::npos);
  object = dflash_json();
  object["dflash_config"]["causal"] = true;
  EXPECT_NE(refusal(object).find("causal"), std::string::npos);
}

// Model-Optimizer#1621, speculators#393, AutoModel#2461.
TEST(DrafterConfig, ResolvesTheMaskTokenToAnUnusedRowOrRefuses) {
  ModelConfig target;
  target.vocab_size = 64;
  target.eos_token_ids = {2, 3};
  target.pad_token_id = 2;
  target.bos_token_id = 1;
  EXPECT_EQ(resolve_mask_token(std::nullopt, target, 54).value(), 54);
  EXPECT_EQ(resolve_mask_token(4, target, 54).value(), 4);
  EXPECT_FALSE(resolve_mask_token(std::nullopt, target, 64).ok());
  const std::vector<std::pair<int64_t, std::string>> refused = {
      {1, "beginning"}, {2, "padding"}, {3, "end of text"}, {64, "64"}, {-1, "-1"}};
  for (const auto& [id, reason] : refused) {
    const Result<int64_t> token = resolve_mask_token(id, target, 54);
    ASSERT_FALSE(token.ok()) << id;
    EXPECT_NE(token.status().message().find(reason), std::string::npos) << token.status().message();
  }
}

TEST(DrafterConfig, RefusesAMaskTokenThatEndsTexts) {
  json object = dflash_json();
  object["dflash_config"]["mask_token_id"] = 151645;
  EXPECT_NE(refusal(object).find("end of text"), std::string::npos);
  object["dflash_config"]["mask_token_id"] = 151936;
  EXPECT_NE(refusal(object).find("151936"), std::string::npos);
}

// vllm#46435: 152064 against 152576 rows made the engine look for a head of its own.
TEST(DrafterConfig, MustHaveTheTargetsVocabularyToTheRow) {
  DrafterConfig config = parse(eagle3_json()).value().config;
  ModelConfig target = qwen3_8b();
  EXPECT_TRUE(match_target(config, target, "drafter").ok());
  target.vocab_size = 152064;
  const Status status = match_target(config, target, "drafter");
  EXPECT_NE(status.message().find("151936"), std::string::npos);
  EXPECT_NE(status.message().find("152064"), std::string::npos);
  target = qwen3_8b();
  target.hidden_size = 2560;
  EXPECT_FALSE(match_target(config, target, "drafter").ok());
  target = qwen3_8b();
  target.num_hidden_layers = 20;
  config.capture = {2, 18, 33};
  EXPECT_FALSE(match_target(config, target, "drafter").ok());
}

TEST(DrafterConfig, TakesTheUsualLayersWhenTheFileNamesNone) {
  DrafterConfig config = parse(eagle3_json()).value().config;
  EXPECT_TRUE(config.capture.empty());
  ASSERT_TRUE(match_target(config, qwen3_8b(), "drafter").ok());
  EXPECT_EQ(config.capture, (std::vector<int64_t>{2, 18, 33}));
  EXPECT_EQ(default_capture(DrafterKind::kDflash, 36, 5),
            (std::vector<int64_t>{2, 10, 18, 26, 34}));
  EXPECT_EQ(default_capture(DrafterKind::kDflash, 64, 5),
            (std::vector<int64_t>{2, 17, 32, 47, 62}));
  EXPECT_EQ(default_capture(DrafterKind::kDflash, 30, 1), (std::vector<int64_t>{16}));
}

// speculators#456, Model-Optimizer#2313; sglang#21272.
TEST(DrafterConfig, GivesEachEngineItsOwnDraftCount) {
  DrafterChoice choice;
  choice.kind = DrafterKind::kDflash;
  choice.mask_token_id = 151669;
  for (const int64_t block : {7, 8, 16}) {
    choice.block_size = block;
    const DrafterConfig config = derived(choice);
    const std::string vllm =
        serve_command(config, DrafterLayout::kOwn, "out", "T", ServingEngine::kVllm, 0).value();
    EXPECT_NE(vllm.find("\"num_speculative_tokens\":" + std::to_string(block - 1) + "}"),
              std::string::npos)
        << vllm;
    EXPECT_NE(vllm.find("\"method\":\"dflash\""), std::string::npos);
    const std::string sglang =
        serve_command(config, DrafterLayout::kOwn, "out", "T", ServingEngine::kSglang, 0).value();
    EXPECT_TRUE(sglang.ends_with("--speculative-num-draft-tokens " + std::to_string(block)));
    EXPECT_NE(sglang.find("--speculative-algorithm DFLASH"), std::string::npos);
  }
  const DrafterConfig eagle3 = derived({});
  const std::string sglang =
      serve_command(eagle3, DrafterLayout::kOwn, "out", "T", ServingEngine::kSglang, 3).value();
  EXPECT_NE(sglang.find("--speculative-algorithm EAGLE3 "), std::string::npos);
  EXPECT_NE(sglang.find("--speculative-num-steps 3 "), std::string::npos);
  EXPECT_TRUE(sglang.ends_with("--speculative-num-draft-tokens 4"));
  EXPECT_EQ(serve_command(eagle3, DrafterLayout::kSpeculators, "out", "T", ServingEngine::kVllm, 3)
                .value(),
            "vllm serve out");
  EXPECT_FALSE(
      serve_command(eagle3, DrafterLayout::kSpeculators, "out", "T", ServingEngine::kSglang, 3)
          .ok());
}

TEST(DrafterConfig, QuotesPathsInServeCommands) {
  const DrafterConfig eagle3 = derived({});
  const auto command = [&](ServingEngine engine, DrafterLayout layout) {
    return serve_command(eagle3, layout, "my run's/out", "a model; rm -rf x", engine, 3).value();
  };
  EXPECT_EQ(command(ServingEngine::kVllm, DrafterLayout::kOwn),
            "vllm serve 'a model; rm -rf x' --speculative-config "
            R"('{"method":"eagle3","model":"my run'\''s/out","num_speculative_tokens":3}')");
  EXPECT_EQ(command(ServingEngine::kVllm, DrafterLayout::kSpeculators),
            R"(vllm serve 'my run'\''s/out')");
  EXPECT_EQ(command(ServingEngine::kSglang, DrafterLayout::kOwn)
                .find("python -m sglang.launch_server --model-path 'a model; rm -rf x' "
                      "--speculative-algorithm EAGLE3 "
                      R"(--speculative-draft-model-path 'my run'\''s/out' )"),
            0u);
  const std::string text =
      serve_command(eagle3, DrafterLayout::kOwn, "a\"b", "T", ServingEngine::kVllm, 3).value();
  EXPECT_NE(text.find(R"("model":"a\"b")"), std::string::npos) << text;
}

TEST(DrafterConfig, SurvivesDamagedTextWithAMessage) {
  for (const char* text :
       {"", "[]", "{\"architectures\": 3}", "{}", "{\"architectures\": [\"X\"]}",
        "{\"speculators_model_type\": \"eagle3\"}",
        "{\"speculators_model_type\": \"eagle3\", \"transformer_layer_config\": 4}"}) {
    const Result<StatedDrafter> stated = parse_drafter_config(text, "config.json");
    ASSERT_FALSE(stated.ok()) << text;
    EXPECT_EQ(stated.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(stated.status().message().find("config.json"), std::string::npos);
  }
}

// Every published configuration with values taken out or replaced: read or refused, never worse.
TEST(DrafterConfig, SurvivesChangedValues) {
  const TestSeed seed(77);
  const std::vector<json> replacements = {json(),
                                          true,
                                          -1,
                                          0,
                                          1,
                                          uint64_t{1} << 63,
                                          std::numeric_limits<int64_t>::min(),
                                          1e308,
                                          "x",
                                          "",
                                          {},
                                          json::array(),
                                          json::object(),
                                          {1, "a", 3}};
  int read = 0, refused = 0;
  const std::vector<std::string> names = system_files().list(kConfigs).value();
  for (const std::string& name : names) {
    const json original = json::parse(read_file(kConfigs + name));
    for (uint64_t round = 0; round < 60; ++round) {
      Random random = Random::keyed(seed.value(), name, round);
      json changed = original;
      json* object = &changed;
      if (changed.contains("dflash_config") && random.below(3) == 0) {
        object = &changed["dflash_config"];
      }
      auto entry = object->begin();
      std::advance(entry, static_cast<int64_t>(random.below(object->size())));
      if (random.below(4) == 0) {
        object->erase(entry);
      } else {
        *entry = replacements[random.below(replacements.size())];
      }
      const Result<StatedDrafter> stated = parse(changed);
      ++(stated.ok() ? read : refused);
      if (!stated.ok()) continue;
      DrafterConfig config = stated->config;
      if (config.capture.empty()) config.capture = {1, 2, 3};
      const Result<std::string> text = drafter_config_text(config, {});
      ASSERT_TRUE(text.ok()) << text.status().message();
      EXPECT_TRUE(parse_drafter_config(*text, "written").ok()) << *text;
    }
  }
  EXPECT_GT(read, 200);
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace percheron

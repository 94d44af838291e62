#include <gtest/gtest.h>

#include "base/random.h"
#include "model/config.h"
#include "tests/model/toy_model.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using nlohmann::json;

json shape_of(const std::string& model_type) {
  return {{"model_type", model_type}, {"hidden_size", 256},        {"intermediate_size", 64},
          {"num_hidden_layers", 3},   {"num_attention_heads", 32}, {"vocab_size", 100}};
}

Result<ModelConfig> read(const json& config, const json& generation = nullptr) {
  const std::string directory = fresh_directory("config");
  write_file(directory + "/config.json", config.dump());
  if (!generation.is_null()) write_file(directory + "/generation_config.json", generation.dump());
  return read_model_config(system_files(), directory);
}

ModelConfig read_ok(const json& config, const json& generation = nullptr) {
  const Result<ModelConfig> result = read(config, generation);
  PERCHERON_CHECK(result.ok(), result.status().message());
  return *result;
}

// The base shape changed by `change` must be refused with a message that holds all of `parts`.
void expect_refused(const std::string& model_type, const json& change,
                    const std::vector<std::string>& parts) {
  json config = shape_of(model_type);
  config.update(change);
  const Result<ModelConfig> result = read(config);
  ASSERT_FALSE(result.ok()) << change.dump();
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_NE(result.status().message().find(part), std::string::npos)
        << "'" << part << "' is not in: " << result.status().message();
  }
}

TEST(HfConfig, AbsentKeysTakeTheFamilysDefaults) {
  json llama_shape = shape_of("llama");
  const ModelConfig llama = read_ok(llama_shape);
  EXPECT_EQ(llama.head_dim, 8);
  EXPECT_EQ(llama.num_key_value_heads, 32);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_EQ(llama.rope.theta, 10000.0);
  EXPECT_EQ(llama.rope.type, RopeType::kDefault);
  EXPECT_FALSE(llama.tie_word_embeddings);
  EXPECT_FALSE(llama.qkv_bias || llama.o_bias || llama.mlp_bias || llama.qk_norm);
  EXPECT_EQ(llama.sliding_window, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(llama.dtype, "float32");

  const ModelConfig qwen2 = read_ok(shape_of("qwen2"));
  EXPECT_EQ(qwen2.head_dim, 8);
  EXPECT_EQ(qwen2.num_key_value_heads, 32);
  EXPECT_EQ(qwen2.max_position_embeddings, 32768);
  EXPECT_EQ(qwen2.rope.theta, 10000.0);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.mlp_bias);

  const ModelConfig qwen3 = read_ok(shape_of("qwen3"));
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);

  const ModelConfig mistral = read_ok(shape_of("mistral"));
  EXPECT_EQ(mistral.num_key_value_heads, 8);
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  EXPECT_EQ(mistral.sliding_window, (std::vector<int64_t>{4096, 4096, 4096}));
}

TEST(HfConfig, NullKeyValueHeadsMeanAsManyAsQueryHeads) {
  for (const char* family : {"llama", "qwen2", "qwen3", "mistral"}) {
    json config = shape_of(family);
    config["num_attention_heads"] = 16;
    config["num_key_value_heads"] = nullptr;
    EXPECT_EQ(read_ok(config).num_key_value_heads, 16) << family;
  }
}

TEST(HfConfig, BiasesFollowTheFamily) {
  json llama = shape_of("llama");
  llama.update({{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(read_ok(llama).qkv_bias && read_ok(llama).o_bias && read_ok(llama).mlp_bias);
  json qwen2 = shape_of("qwen2");
  qwen2["attention_bias"] = false;
  EXPECT_TRUE(read_ok(qwen2).qkv_bias);
  json qwen3 = shape_of("qwen3");
  qwen3["attention_bias"] = true;
  EXPECT_TRUE(read_ok(qwen3).qkv_bias && read_ok(qwen3).o_bias);
  json mistral = shape_of("mistral");
  mistral["attention_bias"] = true;
  EXPECT_FALSE(read_ok(mistral).qkv_bias);
}

TEST(HfConfig, WindowsFollowTheFamily) {
  json mistral = shape_of("mistral");
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(read_ok(mistral).sliding_window, (std::vector<int64_t>{0, 0, 0}));
  json llama = shape_of("llama");
  llama["sliding_window"] = 7;
  EXPECT_EQ(read_ok(llama).sliding_window, (std::vector<int64_t>{0, 0, 0}));

  json qwen = shape_of("qwen2");
  qwen.update({{"sliding_window", 5}, {"max_window_layers", 1}});
  EXPECT_EQ(read_ok(qwen).sliding_window, (std::vector<int64_t>{0, 0, 0}));
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(read_ok(qwen).sliding_window, (std::vector<int64_t>{0, 5, 5}));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(read_ok(qwen).sliding_window, (std::vector<int64_t>{5, 0, 5}));
  qwen["use_sliding_window"] = false;
  EXPECT_EQ(read_ok(qwen).sliding_window, (std::vector<int64_t>{0, 0, 0}));
}

// SpecForge#265, SpecForge#219, TorchSpec#101, speculators#574
TEST(HfConfig, EitherSpellingOfTheRopeIsRead) {
  json old = shape_of("llama");
  old.update({{"rope_theta", 500000.0},
              {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}},
              {"max_position_embeddings", 640}});
  json fresh = shape_of("llama");
  fresh.update(
      {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 500000.0}}},
       {"max_position_embeddings", 640}});
  EXPECT_EQ(read_ok(old).rope, read_ok(fresh).rope);
  EXPECT_EQ(read_ok(old).rope.type, RopeType::kYarn);
  EXPECT_EQ(read_ok(old).rope.original_max_position_embeddings, 640);

  json named_default = shape_of("llama");
  named_default.update({{"rope_scaling", {{"rope_type", "default"}}}, {"rope_theta", 1e6}});
  EXPECT_EQ(read_ok(named_default).rope.theta, 1e6);
}

TEST(HfConfig, RopeScalingReplacesRopeParametersWithItsTheta) {
  json config = shape_of("llama");
  config.update({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000.0}}},
                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}});
  EXPECT_EQ(read_ok(config).rope.theta, 10000.0);
  EXPECT_EQ(read_ok(config).rope.type, RopeType::kLinear);
  config["rope_theta"] = 700000.0;
  EXPECT_EQ(read_ok(config).rope.theta, 700000.0);
  config["rope_scaling"]["rope_theta"] = 800000.0;
  EXPECT_EQ(read_ok(config).rope.theta, 800000.0);
}

TEST(HfConfig, InsideTheRopeObjectTheNewKeysWin) {
  json config = shape_of("llama");
  config.update(
      {{"rope_theta", 1e6},
       {"rope_parameters",
        {{"rope_theta", 2e6}, {"rope_type", "linear"}, {"type", "yarn"}, {"factor", 3}}}});
  EXPECT_EQ(read_ok(config).rope.theta, 2e6);
  EXPECT_EQ(read_ok(config).rope.type, RopeType::kLinear);
  config["rope_parameters"]["original_max_position_embeddings"] = 64;
  EXPECT_EQ(read_ok(config).rope.original_max_position_embeddings, 64);
  config["original_max_position_embeddings"] = 128;
  EXPECT_EQ(read_ok(config).rope.original_max_position_embeddings, 128);
}

TEST(HfConfig, StopTokensComeFromTheGenerationConfigFirst) {
  json config = shape_of("llama");
  config.update({{"eos_token_id", 2}, {"bos_token_id", 1}, {"pad_token_id", nullptr}});
  EXPECT_EQ(read_ok(config).eos_token_ids, (std::vector<int64_t>{2}));
  EXPECT_EQ(read_ok(config).bos_token_id, 1);
  EXPECT_FALSE(read_ok(config).pad_token_id.has_value());
  EXPECT_EQ(read_ok(config, {{"eos_token_id", {7, 9}}}).eos_token_ids,
            (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(read_ok(config, {{"bos_token_id", 1}}).eos_token_ids, (std::vector<int64_t>{2}));
}

TEST(HfConfig, TheDtypeHasTwoSpellings) {
  json config = shape_of("llama");
  config["torch_dtype"] = "bfloat16";
  EXPECT_EQ(read_ok(config).dtype, "bfloat16");
  config["dtype"] = "float16";
  EXPECT_EQ(read_ok(config).dtype, "float16");
}

TEST(HfConfig, ANestedTextConfigIsFollowed) {
  json config = {{"model_type", "some_vision_model"},
                 {"tie_word_embeddings", true},
                 {"eos_token_id", 5},
                 {"text_config", shape_of("qwen3")}};
  EXPECT_EQ(read_ok(config).model_type, "qwen3");
  EXPECT_TRUE(read_ok(config).tie_word_embeddings);
  EXPECT_EQ(read_ok(config).eos_token_ids, (std::vector<int64_t>{5}));
}

TEST(HfConfig, WhatIsNotSupportedIsRefusedByKeyAndValue) {
  expect_refused("llama", {{"model_type", "gemma3_text"}}, {"\"model_type\"", "gemma3_text"});
  expect_refused("llama", {{"hidden_act", "gelu"}}, {"\"hidden_act\"", "gelu"});
  expect_refused("llama", {{"partial_rotary_factor", 0.5}}, {"\"partial_rotary_factor\"", "0.5"});
  expect_refused("llama", {{"rope_parameters", {{"partial_rotary_factor", 0.25}}}},
                 {"rope_parameters", "\"partial_rotary_factor\"", "0.25"});
  expect_refused("llama", {{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4.0}}}},
                 {"rope_scaling", "\"rope_type\"", "longrope"});
  expect_refused("llama", {{"rope_scaling", {{"type", "su"}, {"factor", 4.0}}}},
                 {"\"type\"", "su"});
  expect_refused("qwen3", {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}},
                 {"\"full_attention\""});
  expect_refused("llama", {{"quantization_config", {{"quant_method", "awq"}}}},
                 {"\"quantization_config\"", "awq", "target.weights"});
  expect_refused("qwen3",
                 {{"layer_types", {"full_attention", "linear_attention", "full_attention"}}},
                 {"\"layer_types\"", "linear_attention"});
  expect_refused("llama", {{"dtype", "float8_e4m3fn"}}, {"\"dtype\"", "float8_e4m3fn"});
}

TEST(HfConfig, NumbersAreChecked) {
  expect_refused("llama", {{"num_key_value_heads", 5}}, {"\"num_attention_heads\"", "32", "5"});
  expect_refused("llama", {{"head_dim", 7}}, {"\"head_dim\"", "7"});
  expect_refused("llama", {{"head_dim", 512}}, {"\"head_dim\"", "512"});
  expect_refused("llama",
                 {{"num_attention_heads", 514}, {"num_key_value_heads", 2}, {"head_dim", 8}},
                 {"\"num_attention_heads\"", "514", "256"});
  expect_refused("llama", {{"hidden_size", 250}}, {"\"hidden_size\"", "250"});
  expect_refused("llama", {{"hidden_size", -1}}, {"\"hidden_size\"", "-1"});
  expect_refused("llama", {{"hidden_size", "256"}}, {"\"hidden_size\"", "256"});
  expect_refused("llama", {{"vocab_size", 0}}, {"\"vocab_size\"", "0"});
  expect_refused("llama", {{"num_hidden_layers", nullptr}}, {"\"num_hidden_layers\"", "missing"});
  expect_refused("llama", {{"rms_norm_eps", -1.0}}, {"\"rms_norm_eps\"", "-1"});
  expect_refused("qwen2", {{"layer_types", {"full_attention"}}}, {"\"layer_types\"", "1", "3"});
  expect_refused("llama", {{"rope_scaling", {{"rope_type", "yarn"}}}}, {"\"factor\"", "missing"});
  expect_refused("llama", {{"rope_scaling", "yarn"}}, {"rope_scaling", "yarn"});
  expect_refused(
      "llama",
      {{"rope_scaling",
        {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}},
      {"\"high_freq_factor\"", "4"});
}

TEST(HfConfig, FilesThatAreNoConfigAreRefusedByPath) {
  const std::string directory = fresh_directory("config");
  EXPECT_EQ(read_model_config(system_files(), directory).status().code(), StatusCode::kNotFound);
  for (const char* text : {"", "{", "[1, 2]", "null"}) {
    write_file(directory + "/config.json", text);
    const Result<ModelConfig> result = read_model_config(system_files(), directory);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_NE(result.status().message().find("config.json"), std::string::npos);
  }
}

TEST(HfConfig, AnyDamageGivesAConfigOrAnError) {
  const TestSeed seed(5);
  Random random(seed.value());
  const std::string directory = fresh_directory("config");
  const std::string sound = read_file("tests/golden_data/targets/qwen3_qknorm/config.json");
  ASSERT_FALSE(sound.empty());
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string text = sound;
    for (uint64_t change = 0; change <= random.below(3); ++change) {
      text[random.below(text.size())] = "0129-.e{}[]\",:ntx"[random.below(17)];
    }
    write_file(directory + "/config.json", text);
    const Result<ModelConfig> result = read_model_config(system_files(), directory);
    if (!result.ok()) {
      ++refused;
      continue;
    }
    EXPECT_EQ(result->num_attention_heads % result->num_key_value_heads, 0);
    EXPECT_EQ(static_cast<int64_t>(result->sliding_window.size()), result->num_hidden_layers);
    EXPECT_TRUE(result->head_dim >= 2 && result->head_dim <= 256 && result->head_dim % 2 == 0);
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace percheron

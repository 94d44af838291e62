#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/drafter_config.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using nlohmann::json;

json eagle3_json() {
  return json::parse(read_file("tests/golden_data/drafter_configs/qwen3-8b-eagle3.json"));
}

Result<StatedDrafter> parse(const json& object) {
  return parse_drafter_config(object.dump(), "config.json");
}

// The message of a refusal; empty, with a failure, when it was accepted.
std::string refusal(const json& object) {
  const Result<StatedDrafter> stated = parse(object);
  EXPECT_FALSE(stated.ok());
  return stated.status().message();
}

// Qwen3-8B, as far as its drafter's layer shows it.
ModelConfig target() {
  ModelConfig model = parse(eagle3_json()).value().config.body;
  model.num_hidden_layers = 36;
  return model;
}

TEST(DrafterLimits, RefuseHeadsThatAttentionDoesNotSupport) {
  json object = eagle3_json();
  object["head_dim"] = 512;
  EXPECT_NE(refusal(object).find("\"head_dim\" is 512"), std::string::npos);
  object.erase("head_dim");
  object["num_attention_heads"] = object["num_key_value_heads"] = 8;  // 4096 / 8
  EXPECT_NE(refusal(object).find("\"head_dim\" is 512"), std::string::npos);
  object = eagle3_json();
  object["head_dim"] = 2;
  object["num_attention_heads"] = 512;
  object["num_key_value_heads"] = 1;
  const std::string message = refusal(object);
  EXPECT_NE(message.find("\"num_attention_heads\" is 512"), std::string::npos) << message;
  EXPECT_NE(message.find("256"), std::string::npos) << message;
  object["num_key_value_heads"] = 2;
  EXPECT_TRUE(parse(object).ok());
}

// The layer is trained with full attention, and a server would slide it.
TEST(DrafterLimits, RefuseAnEagle3ThatSlides) {
  json object = eagle3_json();
  object["layer_types"] = {"sliding_attention"};
  object["sliding_window"] = 512;
  EXPECT_NE(refusal(object).find("\"sliding_window\" is 512"), std::string::npos);
  object["layer_types"] = {"full_attention"};
  EXPECT_TRUE(parse(object).ok());
  DrafterChoice choice;
  choice.sliding_layers = {0};
  choice.sliding_window = 512;
  const Result<DrafterConfig> config = derive_drafter_config(target(), choice);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(config.status().message().find("\"sliding_window\" is 512"), std::string::npos);
}

// A window counts no keys of the slot's own block, which servers count: the block must fit.
TEST(DrafterLimits, RefuseAWindowShorterThanABlock) {
  DrafterChoice choice;
  choice.kind = DrafterKind::kDflash;
  choice.mask_token_id = 151669;
  choice.block_size = 16;
  choice.sliding_layers = {1};
  choice.sliding_window = 16;
  EXPECT_TRUE(derive_drafter_config(target(), choice).ok());
  choice.sliding_window = 15;
  const Result<DrafterConfig> config = derive_drafter_config(target(), choice);
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.status().message().find("\"sliding_window\" is 15"), std::string::npos);
  EXPECT_NE(config.status().message().find("\"block_size\" of 16"), std::string::npos);
}

}  // namespace
}  // namespace percheron

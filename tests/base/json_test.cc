#include "base/json.h"

#include <gtest/gtest.h>

namespace percheron {
namespace {

nlohmann::json config() {
  return parse_json(R"({"hidden_size": 64, "rope_theta": 10000, "tie": true, "type": "llama",
                        "layers": [1, 2], "eos": null, "huge": 18446744073709551615,
                        "rope_scaling": {"factor": 8.0}})",
                    "config.json")
      .value();
}

TEST(Json, ReadsTheTypesOfAConfig) {
  const nlohmann::json json = config();
  EXPECT_EQ(json_get<int64_t>(json, "hidden_size", "config.json").value(), 64);
  EXPECT_EQ(json_get<double>(json, "rope_theta", "config.json").value(), 10000.0);
  EXPECT_EQ(json_get<bool>(json, "tie", "config.json").value(), true);
  EXPECT_EQ(json_get<std::string>(json, "type", "config.json").value(), "llama");
  EXPECT_EQ(json_get<std::vector<int64_t>>(json, "layers", "config.json").value(),
            (std::vector<int64_t>{1, 2}));
  const Result<const nlohmann::json*> nested = json_object(json, "rope_scaling", "config.json");
  EXPECT_EQ(json_get<double>(**nested, "factor", "config.json").value(), 8.0);
}

TEST(Json, ErrorsNameTheFileTheKeyAndTheValue) {
  const nlohmann::json json = config();
  EXPECT_EQ(json_get<int64_t>(json, "vocab_size", "config.json").status().message(),
            "config.json: \"vocab_size\" is missing");
  EXPECT_EQ(json_get<int64_t>(json, "type", "config.json").status().message(),
            "config.json: \"type\" must be an integer, not \"llama\"");
  EXPECT_EQ(json_get<int64_t>(json, "huge", "config.json").status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(json_get<int64_t>(json["layers"], "x", "config.json").status().message(),
            "config.json: an object with \"x\" is expected, not [1,2]");
  EXPECT_EQ(json_array(json, "type", "config.json").status().message(),
            "config.json: \"type\" must be an array, not \"llama\"");
}

TEST(Json, FallbacksStandForMissingAndNullButNotForAWrongType) {
  const nlohmann::json json = config();
  EXPECT_EQ(json_get_or<int64_t>(json, "eos", 7, "config.json").value(), 7);
  EXPECT_EQ(json_get_or<int64_t>(json, "absent", 7, "config.json").value(), 7);
  EXPECT_EQ(json_get_or<int64_t>(json, "hidden_size", 7, "config.json").value(), 64);
  EXPECT_FALSE(json_get_or<int64_t>(json, "type", 7, "config.json").ok());
}

TEST(Json, BrokenTextIsAnErrorThatNamesTheFileAndThePlace) {
  for (const char* text : {"", "{", "{\"a\": }", "[1, 2", "\"\xff\"", "{} x", "1e999"}) {
    const Result<nlohmann::json> result = parse_json(text, "broken.json");
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_TRUE(result.status().message().starts_with("broken.json is not valid JSON: "))
        << result.status().message();
  }
  EXPECT_NE(parse_json("{\"a\": }", "x").status().message().find("column 7"), std::string::npos);
}

// Values are copied, printed and compared by recursion, which 200000 levels would overflow.
TEST(Json, NestingHasALimit) {
  const auto nested = [](size_t depth) {
    return parse_json(std::string(depth, '[') + std::string(depth, ']'), "deep.json");
  };
  EXPECT_TRUE(nested(kJsonDepthMax).ok());
  for (const size_t depth : {size_t{kJsonDepthMax} + 1, size_t{200000}}) {
    const Result<nlohmann::json> result = nested(depth);
    ASSERT_FALSE(result.ok()) << depth;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find("deep.json"), std::string::npos);
    EXPECT_NE(result.status().message().find("64"), std::string::npos);
  }
  const std::string in_a_string = "[\"\\\"" + std::string(100, '[') + "\"]";
  EXPECT_TRUE(parse_json(in_a_string, "text.json").ok());
}

}  // namespace
}  // namespace percheron

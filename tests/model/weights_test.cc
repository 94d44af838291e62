#include "model/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/model/toy_model.h"

namespace percheron {
namespace {

Status load_status(const std::string& directory) {
  TestDevice device;
  return Target::load(system_files(), directory, device.context(), {}).status();
}

void expect_message(const Status& status, StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << "'" << part << "' is not in: " << status.message();
  }
}

const char* const kUp = "model.layers.1.mlp.up_proj.weight";

TEST(Weights, AMissingTensorIsNamedWithItsFile) {
  ToyModel model = make_toy_model(1);
  model.tensors.erase(kUp);
  expect_message(load_status(model.write(fresh_directory("model"))), StatusCode::kInvalidArgument,
                 {"model.safetensors", kUp, "missing"});
}

TEST(Weights, AnAbsentHeadOfAnUntiedModelIsNoSilentRandomHead) {
  ToyModel model = make_toy_model(1);
  model.tensors.erase("lm_head.weight");
  expect_message(load_status(model.write(fresh_directory("model"))), StatusCode::kInvalidArgument,
                 {"lm_head.weight", "missing", "tie_word_embeddings"});
}

TEST(Weights, AWrongShapeIsNamedWithBothShapes) {
  ToyModel model = make_toy_model(1);
  model.shapes[kUp] = {32, 48};
  expect_message(load_status(model.write(fresh_directory("model"))), StatusCode::kInvalidArgument,
                 {"model.safetensors", kUp, "[32, 48]", "[48, 32]"});
}

TEST(Weights, AVocabularyOfAnotherSizeIsRefused) {
  ToyModel model = make_toy_model(1);
  model.config["vocab_size"] = 98;
  expect_message(load_status(model.write(fresh_directory("model"))), StatusCode::kInvalidArgument,
                 {"embed_tokens.weight", "[97, 32]", "[98, 32]"});
}

TEST(Weights, ANonFiniteWeightIsNamed) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    ToyModel model = make_toy_model(1);
    model.tensors[kUp][1000] = bad;
    expect_message(load_status(model.write(fresh_directory("model"))), StatusCode::kDataLoss,
                   {"model.safetensors", kUp, "element 1000"});
  }
}

TEST(Weights, EveryPositionOfEveryTypeIsScanned) {
  std::vector<float> floats(9001, 1.0f);
  std::vector<uint16_t> halves(9001, 0x3c00);
  const ConstTensorView f32(floats.data(), DType::kF32, {9001});
  const ConstTensorView f16(halves.data(), DType::kF16, {9001});
  const ConstTensorView bf16(halves.data(), DType::kBf16, {9001});
  EXPECT_EQ(first_not_finite(f32), -1);
  EXPECT_EQ(first_not_finite(f16), -1);
  EXPECT_EQ(first_not_finite(bf16), -1);
  for (const size_t at : {size_t{0}, size_t{4095}, size_t{4096}, size_t{9000}}) {
    floats[at] = INFINITY;
    EXPECT_EQ(first_not_finite(f32), static_cast<int64_t>(at));
    floats[at] = std::numeric_limits<float>::max();
    halves[at] = 0x7c01;  // a NaN in f16, an ordinary number in bf16
    EXPECT_EQ(first_not_finite(f16), static_cast<int64_t>(at));
    EXPECT_EQ(first_not_finite(bf16), -1);
    halves[at] = 0xff80;  // minus infinity in bf16
    EXPECT_EQ(first_not_finite(bf16), static_cast<int64_t>(at));
    halves[at] = 0x3c00;
  }
}

TEST(Weights, ATruncatedFileIsRefused) {
  const std::string directory = make_toy_model(1).write(fresh_directory("model"));
  const std::string path = directory + "/model.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100);
  expect_message(load_status(directory), StatusCode::kDataLoss, {"model.safetensors"});
  std::filesystem::resize_file(path, 5);
  expect_message(load_status(directory), StatusCode::kDataLoss, {"model.safetensors"});
}

TEST(Weights, ADirectoryWithoutSafetensorsSaysWhatLiesThere) {
  const std::string directory = make_toy_model(1).write(fresh_directory("model"));
  std::filesystem::remove(directory + "/model.safetensors");
  expect_message(load_status(directory), StatusCode::kNotFound, {"model.safetensors.index.json"});
  write_file(directory + "/pytorch_model.bin", "");
  expect_message(load_status(directory), StatusCode::kNotFound,
                 {"pytorch_model.bin", "convert it to safetensors"});
}

TEST(Weights, AnUnknownTensorIsTolerated) {
  ToyModel model = make_toy_model(1);
  model.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {1.0f};
  model.shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = {1};
  model.tensors["visual.patch.weight"] = {1.0f};
  model.shapes["visual.patch.weight"] = {1};
  EXPECT_TRUE(load_status(model.write(fresh_directory("model"))).ok());
}

TEST(Weights, PrefixesOfNestedModelsAreTolerated) {
  const ToyModel plain = make_toy_model(1);
  TestDevice device;
  const auto expected = load_target(device, plain.write(fresh_directory("plain")))->weights_hash();
  for (const std::string prefix : {"", "language_model.model.", "model.language_model."}) {
    ToyModel renamed = plain;
    renamed.tensors.clear();
    renamed.shapes.clear();
    for (const auto& [name, values] : plain.tensors) {
      const std::string fresh = name.starts_with("model.") ? prefix + name.substr(6) : name;
      renamed.tensors[fresh] = values;
      renamed.shapes[fresh] = plain.shapes.at(name);
    }
    const std::string directory = renamed.write(fresh_directory("renamed"));
    EXPECT_EQ(load_target(device, directory)->weights_hash(), expected) << prefix;
  }
}

TEST(Weights, TheSameTensorUnderTwoPrefixesIsRefused) {
  ToyModel model = make_toy_model(1);
  model.tensors["norm.weight"] = model.tensors["model.norm.weight"];
  model.shapes["norm.weight"] = {32};
  expect_message(load_status(model.write(fresh_directory("model"))), StatusCode::kDataLoss,
                 {"'norm.weight'", "'model.norm.weight'"});
}

TEST(Weights, ATiedModelMayStoreTheSameHeadOnly) {
  ToyModel model = make_toy_model(1, {{"tie_word_embeddings", true}});
  model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"];
  model.shapes["lm_head.weight"] = {97, 32};
  EXPECT_TRUE(load_status(model.write(fresh_directory("same"))).ok());
  model.tensors["lm_head.weight"][5] += 1.0f;
  expect_message(load_status(model.write(fresh_directory("other"))), StatusCode::kInvalidArgument,
                 {"lm_head.weight", "tie_word_embeddings"});
}

TEST(Weights, TheHashTellsOneChangedNumber) {
  TestDevice device;
  ToyModel model = make_toy_model(1);
  const std::string before = load_target(device, model.write(fresh_directory("a")))->weights_hash();
  EXPECT_EQ(before, load_target(device, model.write(fresh_directory("b")))->weights_hash());
  model.tensors[kUp][0] = std::nextafter(model.tensors[kUp][0], 2.0f);
  EXPECT_NE(before, load_target(device, model.write(fresh_directory("c")))->weights_hash());
}

// A golden checkpoint in three shards, which the cases below bend.
std::string sharded_copy(const std::string& name) {
  const std::string directory = fresh_directory(name);
  std::filesystem::copy("tests/golden_data/targets/llama_default_sharded", directory,
                        std::filesystem::copy_options::recursive);
  return directory;
}

TEST(Weights, AnIndexMayPutAnyTensorInAnyShardButMustBeRight) {
  EXPECT_TRUE(load_status(sharded_copy("right")).ok());

  const std::string lying = sharded_copy("lying");
  const std::string index_path = lying + "/model.safetensors.index.json";
  nlohmann::json index = nlohmann::json::parse(read_file(index_path));
  index["weight_map"]["lm_head.weight"] = "model-00001-of-00003.safetensors";
  write_file(index_path, index.dump());
  expect_message(load_status(lying), StatusCode::kDataLoss,
                 {"model-00001-of-00003.safetensors", "lm_head.weight"});

  index["weight_map"]["lm_head.weight"] = "../model-00003-of-00003.safetensors";
  write_file(index_path, index.dump());
  expect_message(load_status(lying), StatusCode::kInvalidArgument,
                 {"lm_head.weight", "../model-00003-of-00003.safetensors"});

  const std::string incomplete = sharded_copy("incomplete");
  std::filesystem::remove(incomplete + "/model-00002-of-00003.safetensors");
  expect_message(load_status(incomplete), StatusCode::kNotFound,
                 {"model-00002-of-00003.safetensors", "index.json"});
}

TEST(Weights, LayerWeightsAreGivenAsFloats) {
  TestDevice device;
  const ToyModel model = make_toy_model(1);
  const auto target = load_target(device, model.write(fresh_directory("model")));
  const Result<HostWeight> weight = target->layer_weight(1, "mlp.up_proj.weight");
  ASSERT_TRUE(weight.ok());
  EXPECT_EQ(weight->values, model.tensors.at(kUp));
  EXPECT_EQ(weight->shape, (std::vector<int64_t>{48, 32}));
  EXPECT_EQ(target->layer_weight(4, "mlp.up_proj.weight").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(target->layer_weight(0, "mlp.gone.weight").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace percheron

#include "model/drafter_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using nlohmann::json;

const std::string kExports = "tests/golden_data/exports";

// The directories kept here and those of a larger collection that PERCHERON_GOLDEN_EXPORTS names.
std::vector<std::string> export_directories() {
  std::vector<std::string> directories;
  const char* more = std::getenv("PERCHERON_GOLDEN_EXPORTS");
  for (const std::string& root : {kExports, std::string(more != nullptr ? more : "")}) {
    if (!std::filesystem::exists(root)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (entry.is_directory()) directories.push_back(entry.path().string());
    }
  }
  return directories;
}

SafetensorsFile open(const std::string& directory) {
  return SafetensorsFile::open(system_files(), directory + "/model.safetensors").value();
}

std::vector<HostTensor> tensors_of(const DrafterFile& file) {
  std::vector<HostTensor> tensors;
  for (const auto& [name, view] : file.tensors) {
    HostTensor tensor{name, view.dtype(), {view.shape().begin(), view.shape().end()}, {}};
    const auto* bytes = static_cast<const std::byte*>(view.data());
    tensor.bytes.assign(bytes, bytes + view.bytes());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

ConfigExport options_of(const DrafterFile& file, const json& config) {
  ConfigExport options;
  options.layout = file.layout;
  if (file.layout != DrafterLayout::kSpeculators) return options;
  const json& method = config["speculators_config"];
  options.target_path = method["verifier"]["name_or_path"];
  options.target_architecture = method["verifier"]["architectures"][0];
  options.draft_tokens = method["proposal_methods"][0]["speculative_tokens"];
  return options;
}

bool same_bytes(ConstTensorView a, ConstTensorView b) {
  return a.dtype() == b.dtype() && std::ranges::equal(a.shape(), b.shape()) &&
         std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

// What peers wrote and servers read, for every directory: names, types, shapes, bytes.
TEST(DrafterFiles, GoThroughReadingAndWritingBitForBit) {
  int checked = 0;
  for (const std::string& directory : export_directories()) {
    SCOPED_TRACE(directory);
    const Result<DrafterFile> file = read_drafter(system_files(), directory, nullptr);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const json config = json::parse(read_file(directory + "/config.json"));
    const Result<EncodedDrafter> encoded =
        encode_drafter(file->config, tensors_of(*file), file->draft_ids, file->embedding,
                       options_of(*file, config));
    ASSERT_TRUE(encoded.ok()) << encoded.status().message();
    const std::string copy = fresh_directory("copy");
    ASSERT_TRUE(write_drafter(system_files(), copy, *encoded).ok());
    const SafetensorsFile before = open(directory), after = open(copy);
    ASSERT_EQ(before.tensors().size(), after.tensors().size());
    for (const auto& [name, view] : before.tensors()) {
      ASSERT_TRUE(after.contains(name)) << name;
      EXPECT_TRUE(same_bytes(view, after.tensors().at(name))) << name;
    }
    EXPECT_EQ(after.metadata().at("format"), "pt");
    ++checked;
  }
  EXPECT_GE(checked, 4);
}

// Keys whose value may differ: side effects of the peers' classes, or deliberately other.
const std::set<std::string> kFreeKeys = {"auto_map", "transformers_version", "max_window_layers",
                                         "sliding_window_non_causal"};

void expect_same_keys(const json& wanted, const json& actual, const std::string& path) {
  for (const auto& [key, value] : wanted.items()) {
    if (kFreeKeys.contains(key)) continue;
    const std::string name = path + key;
    if (value.is_null()) {
      EXPECT_TRUE(!actual.contains(key) || actual[key].is_null()) << name;
    } else if (!actual.contains(key)) {
      ADD_FAILURE() << name << " is not written; it was " << value;
    } else if (value.is_object()) {
      expect_same_keys(value, actual[key], name + ".");
    } else {
      EXPECT_EQ(actual[key], value) << name;
    }
  }
}

TEST(DrafterFiles, HaveEveryKeyOfThePeersConfigurations) {
  for (const std::string& directory : export_directories()) {
    SCOPED_TRACE(directory);
    const DrafterFile file = read_drafter(system_files(), directory, nullptr).value();
    const json wanted = json::parse(read_file(directory + "/config.json"));
    const Result<std::string> text = drafter_config_text(file.config, options_of(file, wanted));
    ASSERT_TRUE(text.ok()) << text.status().message();
    json actual = json::parse(*text);
    json expected = wanted;
    // Only what slides needs a window; speculators keeps its default beside full attention.
    json& body = expected.contains("transformer_layer_config")
                     ? expected["transformer_layer_config"]
                     : expected;
    if (body.value("use_sliding_window", false) == false) body.erase("sliding_window");
    expect_same_keys(expected, actual, "");
  }
}

// EAGLE#305, SpecForge#478, vllm#27737: with and without its own head and embedding.
TEST(DrafterFiles, SayWhatIsTheTargetsOwn) {
  const DrafterFile hf =
      read_drafter(system_files(), kExports + "/specforge_eagle3_hf", nullptr).value();
  EXPECT_EQ(hf.layout, DrafterLayout::kSpecforgeHf);
  EXPECT_EQ(hf.skipped, (std::vector<std::string>{"embed_tokens.weight"}));
  EXPECT_TRUE(hf.tensors.contains("lm_head.weight"));
  const DrafterFile dflash =
      read_drafter(system_files(), kExports + "/specforge_dflash_hf", nullptr).value();
  EXPECT_FALSE(dflash.tensors.contains("lm_head.weight"));
  EXPECT_TRUE(dflash.draft_ids.empty());
}

/// A copy of a golden directory that a test damages.
class DamagedDrafter : public testing::Test {
 protected:
  std::string make(const std::string& name, const std::string& dropped,
                   const std::vector<NamedTensor>& added = {}, const json& changes = {}) {
    const std::string directory = fresh_directory("damaged");
    json config = json::parse(read_file(kExports + "/" + name + "/config.json"));
    if (changes.is_object()) config.update(changes);
    write_file(directory + "/config.json", config.dump());
    source_.push_back(open(kExports + "/" + name));
    std::vector<NamedTensor> tensors = added;
    for (const auto& [tensor, view] : source_.back().tensors()) {
      if (tensor != dropped) tensors.push_back({tensor, view});
    }
    EXPECT_TRUE(
        write_safetensors(system_files(), directory + "/model.safetensors", tensors, {}).ok());
    return directory;
  }

  std::string refusal(const std::string& directory) {
    const Result<DrafterFile> file = read_drafter(system_files(), directory, nullptr);
    EXPECT_FALSE(file.ok());
    return file.ok() ? "" : file.status().message();
  }

  std::vector<SafetensorsFile> source_;
};

// AutoModel#2447: without its map a reduced vocabulary means other tokens.
TEST_F(DamagedDrafter, WithoutItsVocabularyMapIsRefused) {
  for (const char* name : {"d2t", "t2d"}) {
    const std::string message = refusal(make("specforge_eagle3_hf", name));
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find("64"), std::string::npos) << message;
  }
}

// vllm-ascend#15531.
TEST_F(DamagedDrafter, WithoutATensorNamesIt) {
  for (const char* name : {"lm_head.weight", "midlayer.mlp.up_proj.weight", "norm.weight"}) {
    const std::string message = refusal(make("specforge_eagle3_hf", name));
    EXPECT_NE(message.find(std::string(name) + " is missing"), std::string::npos) << message;
  }
}

TEST_F(DamagedDrafter, WithAStrangeTensorNamesIt) {
  const std::vector<float> values(64, 1.0f);
  const NamedTensor strange{"mask_hidden", ConstTensorView(values.data(), DType::kF32, {64})};
  const std::string message = refusal(make("specforge_dflash_hf", "", {strange}));
  EXPECT_NE(message.find("mask_hidden"), std::string::npos) << message;
}

TEST_F(DamagedDrafter, WithAValueThatIsNotFiniteNamesItsPlace) {
  std::vector<float> values(64, 1.0f);
  values[7] = std::numeric_limits<float>::infinity();
  const NamedTensor bad{"norm.weight", ConstTensorView(values.data(), DType::kF32, {64})};
  const std::string message = refusal(make("specforge_dflash_hf", "norm.weight", {bad}));
  EXPECT_NE(message.find("norm.weight is not finite at element 7"), std::string::npos) << message;
}

// speculators#1065, vllm#54526.
TEST_F(DamagedDrafter, WithMoreLayersThanItsFcReadsIsRefused) {
  const json four = {{"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {0, 1, 2, 5}}}}};
  const std::string message = refusal(make("specforge_eagle3_hf", "", {}, four));
  EXPECT_NE(message.find("192 columns"), std::string::npos) << message;
  EXPECT_NE(message.find("4 captured layers"), std::string::npos) << message;
}

TEST_F(DamagedDrafter, WithAnotherDraftVocabularyThanItsMapIsRefused) {
  const std::string message =
      refusal(make("specforge_eagle3_hf", "", {}, {{"draft_vocab_size", 70}}));
  EXPECT_NE(message.find("70"), std::string::npos) << message;
}

TEST_F(DamagedDrafter, InFloat16IsReadAsWell) {
  const DrafterFile file =
      read_drafter(system_files(), kExports + "/specforge_dflash_hf", nullptr).value();
  const std::vector<float> values = to_floats(file.tensors.at("fc.weight"));
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(f16_from_float(value));
  const NamedTensor half{"fc.weight", ConstTensorView(halves.data(), DType::kF16, {64, 128})};
  const Result<DrafterFile> read =
      read_drafter(system_files(), make("specforge_dflash_hf", "fc.weight", {half}), nullptr);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->tensors.at("fc.weight").dtype(), DType::kF16);
}

TEST(DrafterFiles, AreWrittenInBfloat16WhateverTheyWere) {
  const DrafterFile file =
      read_drafter(system_files(), kExports + "/specforge_dflash_hf", nullptr).value();
  std::vector<HostTensor> wide = tensors_of(file);
  for (HostTensor& tensor : wide) {
    const std::vector<float> values = to_floats(tensor.view());
    tensor.dtype = DType::kF32;
    tensor.bytes.resize(values.size() * sizeof(float));
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  }
  const EncodedDrafter encoded = encode_drafter(file.config, wide, {}, {}, {}).value();
  for (const HostTensor& tensor : encoded.tensors) {
    EXPECT_TRUE(same_bytes(tensor.view(), file.tensors.at(tensor.name))) << tensor.name;
  }
}

// TorchSpec#38: an embedding that is not the target's is noticed.
TEST(DrafterFiles, CompareTheirEmbeddingWithTheTargets) {
  const DrafterFile file =
      read_drafter(system_files(), kExports + "/specforge_eagle3_hf", nullptr).value();
  EXPECT_TRUE(check_embedding(file, file.embedding).ok());
  std::vector<float> other = to_floats(file.embedding);
  other[64 * 5 + 3] += 1;
  const Status status =
      check_embedding(file, ConstTensorView(other.data(), DType::kF32, {131, 64}));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("row 5"), std::string::npos);
  // A target of another size, and one whose table is no table of floats.
  const std::vector<float> small(130 * 64);
  const std::vector<int32_t> integers(131 * 64);
  for (const ConstTensorView& foreign :
       {ConstTensorView(small.data(), DType::kF32, {130, 64}),
        ConstTensorView(other.data(), DType::kF32, {64, 131}),
        ConstTensorView(integers.data(), DType::kI32, {131, 64})}) {
    const Status refused = check_embedding(file, foreign);
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find(describe(foreign)), std::string::npos) << refused.message();
  }
}

TEST(DrafterFiles, AreNotWrittenWithATableThatIsNoTargets) {
  const DrafterFile file =
      read_drafter(system_files(), kExports + "/specforge_eagle3_hf", nullptr).value();
  const std::vector<int32_t> integers(131 * 64);
  for (const ConstTensorView& foreign :
       {ConstTensorView(), ConstTensorView(integers.data(), DType::kI32, {131, 64})}) {
    const Result<EncodedDrafter> encoded =
        encode_drafter(file.config, tensors_of(file), file.draft_ids, foreign,
                       {DrafterLayout::kSpecforgeHf, "", "", 0});
    ASSERT_FALSE(encoded.ok());
    EXPECT_EQ(encoded.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(DrafterFiles, AreNotWrittenWithAVocabularyMapThatDoesNotFit) {
  const DrafterFile file =
      read_drafter(system_files(), kExports + "/specforge_eagle3_hf", nullptr).value();
  std::vector<int32_t> ids = file.draft_ids;
  ids.pop_back();
  EXPECT_FALSE(encode_drafter(file.config, tensors_of(file), ids, {}, {}).ok());
  ids = file.draft_ids;
  std::swap(ids[0], ids[1]);
  EXPECT_FALSE(encode_drafter(file.config, tensors_of(file), ids, {}, {}).ok());
  ids = file.draft_ids;
  ids.back() = 131;
  EXPECT_FALSE(encode_drafter(file.config, tensors_of(file), ids, {}, {}).ok());
  EXPECT_FALSE(encode_drafter(file.config, tensors_of(file), {}, {}, {}).ok());
  std::vector<HostTensor> tensors = tensors_of(file);
  tensors.pop_back();
  EXPECT_FALSE(encode_drafter(file.config, tensors, file.draft_ids, {}, {}).ok());
}

}  // namespace
}  // namespace percheron

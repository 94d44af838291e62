#include "tests/model/toy_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/random.h"
#include "data/safetensors.h"
#include "model/weights.h"
#include "tests/test_device.h"

namespace percheron {

std::string fresh_directory(const std::string& name) {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path =
      testing::TempDir() + "percheron_" + info->test_suite_name() + "_" + info->name() + "_" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string ToyModel::write(const std::string& directory) const {
  write_file(directory + "/config.json", config.dump(1));
  std::vector<NamedTensor> named;
  for (const auto& [name, values] : tensors) {
    named.push_back({name, ConstTensorView(values.data(), DType::kF32, shapes.at(name))});
  }
  const Status status =
      write_safetensors(system_files(), directory + "/model.safetensors", named, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return directory;
}

ToyModel make_toy_model(uint64_t seed, const nlohmann::json& config) {
  ToyModel model;
  model.config = {{"model_type", "llama"},    {"hidden_size", 32},
                  {"intermediate_size", 48},  {"num_hidden_layers", 4},
                  {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                  {"vocab_size", 97},         {"max_position_embeddings", 512},
                  {"rms_norm_eps", 1e-5},     {"dtype", "float32"}};
  model.config.update(config);
  const std::string directory = fresh_directory("config_of_toy");
  write_file(directory + "/config.json", model.config.dump());
  const Result<ModelConfig> read = read_model_config(system_files(), directory);
  EXPECT_TRUE(read.ok()) << read.status().message();
  if (!read.ok()) return model;

  Random random = Random::keyed(seed, "toy model");
  for (const ExpectedTensor& tensor : expected_tensors(*read)) {
    const bool head = tensor.name == "lm_head.weight";
    const std::string name = head ? tensor.name : "model." + tensor.name;
    int64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= extent;
    const bool norm = tensor.name.find("norm") != std::string::npos;
    const bool table = tensor.name == "embed_tokens.weight" || tensor.shape.size() == 1;
    const double scale = table ? 1.0 : 1.5 / std::sqrt(static_cast<double>(tensor.shape.back()));
    std::vector<float>& values = model.tensors[name];
    for (int64_t i = 0; i < count; ++i) {
      const double value = random.normal();
      values.push_back(static_cast<float>(norm ? 1.0 + 0.2 * value : scale * value));
    }
    model.shapes[name] = tensor.shape;
  }
  return model;
}

TestDevice::TestDevice(int threads) : TestDevice(test_device(), {.threads = threads}) {}

TestDevice::TestDevice(DeviceId id, const DeviceOptions& options) {
  Result<std::unique_ptr<Device>> device = open_device(id, options);
  PERCHERON_CHECK(device.ok(), device.status().message());
  device_ = std::move(device).value();
  device_->bind_thread();
  stream_ = device_->make_stream();
  arena_ = std::make_unique<Arena>(*device_);
  context_ = std::make_unique<Context>(Context{*device_, *stream_, *arena_});
}

std::vector<float> TestDevice::floats(ConstTensorView view) {
  EXPECT_EQ(view.dtype(), DType::kF32);
  std::vector<float> values(static_cast<size_t>(view.elements()));
  device_->copy_bytes(*stream_, values.data(), view.data(), view.bytes());
  EXPECT_TRUE(stream_->wait_idle().ok());
  return values;
}

std::vector<int32_t> TestDevice::integers(ConstTensorView view) {
  EXPECT_EQ(view.dtype(), DType::kI32);
  std::vector<int32_t> values(static_cast<size_t>(view.elements()));
  device_->copy_bytes(*stream_, values.data(), view.data(), view.bytes());
  EXPECT_TRUE(stream_->wait_idle().ok());
  return values;
}

TargetOptions f32_options(std::vector<int64_t> capture) {
  TargetOptions options;
  options.compute_dtype = DType::kF32;
  options.capture = std::move(capture);
  return options;
}

std::unique_ptr<Target> load_target(TestDevice& device, const std::string& directory,
                                    const TargetOptions& options) {
  Result<std::unique_ptr<Target>> target =
      Target::load(system_files(), directory, device.context(), options);
  PERCHERON_CHECK(target.ok(), target.status().message());
  return std::move(target).value();
}

std::vector<float> last_states(TestDevice& device, Target& target,
                               const std::vector<std::vector<int32_t>>& documents) {
  PackedSequences rows;
  rows.offsets.push_back(0);
  for (const auto& document : documents) {
    rows.token_ids.insert(rows.token_ids.end(), document.begin(), document.end());
    rows.offsets.push_back(static_cast<int32_t>(rows.token_ids.size()));
  }
  Context& context = device.context();
  Arena::Scope scope(context.arena);
  const TensorView last = context.arena.take(
      DType::kF32, {static_cast<int64_t>(rows.token_ids.size()), target.config().hidden_size});
  const Status status = target.forward(context, rows, nullptr, {}, last);
  EXPECT_TRUE(status.ok()) << status.message();
  return device.floats(last);
}

std::vector<int32_t> random_tokens(uint64_t seed, int64_t count, int64_t vocab_size) {
  Random random = Random::keyed(seed, "tokens");
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size))));
  }
  return tokens;
}

}  // namespace percheron

#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/target.h"

namespace percheron {

/// A directory below the test's temporary one, empty and unique to `name`.
std::string fresh_directory(const std::string& name);

void write_file(const std::string& path, const std::string& text);
std::string read_file(const std::string& path);

/// A tiny random target in memory that tests change before they write it.
struct ToyModel {
  nlohmann::json config;
  std::map<std::string, std::vector<float>> tensors;  // by their stored names, all F32
  std::map<std::string, std::vector<int64_t>> shapes;

  /// Writes config.json and model.safetensors; returns `directory`.
  std::string write(const std::string& directory) const;
};

/// Random weights for `config` (llama when it names no model_type) with 32 hidden, 4 layers, 97
/// tokens unless it says otherwise.
ToyModel make_toy_model(uint64_t seed, const nlohmann::json& config = nlohmann::json::object());

/// The device under test with one stream, bound to the calling thread.
class TestDevice {
 public:
  explicit TestDevice(int threads = 1);
  TestDevice(DeviceId id, const DeviceOptions& options);
  Context& context() { return *context_; }
  std::vector<float> floats(ConstTensorView view);
  std::vector<int32_t> integers(ConstTensorView view);

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Context> context_;
};

/// Options of a target that computes in f32 and captures these states.
TargetOptions f32_options(std::vector<int64_t> capture = {});

/// Loads a target that must be fine.
std::unique_ptr<Target> load_target(TestDevice& device, const std::string& directory,
                                    const TargetOptions& options = f32_options());

/// The residual stream [T, H] before the final norm of documents of these tokens, in one pack.
std::vector<float> last_states(TestDevice& device, Target& target,
                               const std::vector<std::vector<int32_t>>& documents);

/// Tokens that are a pure function of the seed.
std::vector<int32_t> random_tokens(uint64_t seed, int64_t count, int64_t vocab_size);

}  // namespace percheron

#include "tests/model/toy_drafter.h"

#include <gtest/gtest.h>

namespace percheron {

TargetParts parts_of(const Target& target) {
  return {target.embedding(), target.head(), target.final_norm(), target.config().rms_norm_eps};
}

ToyPair make_toy_pair(TestDevice& device, uint64_t seed, DrafterChoice choice,
                      std::span<const WarmStart> warm, const nlohmann::json& target_changes) {
  Context& context = device.context();
  const std::string directory =
      make_toy_model(seed, target_changes).write(fresh_directory("target"));
  const ModelConfig model = read_model_config(system_files(), directory).value();
  const Result<DrafterConfig> config = derive_drafter_config(model, choice);
  EXPECT_TRUE(config.ok()) << config.status().message();
  TargetOptions options;
  options.compute_dtype = DType::kF32;
  options.capture = config->capture;
  ToyPair pair;
  pair.target = load_target(device, directory, options);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < model.vocab_size && config->draft_vocab_size < model.vocab_size; ++id) {
    if (id % 7 != 0 && static_cast<int64_t>(ids.size()) < config->draft_vocab_size)
      ids.push_back(id);
  }
  Result<std::unique_ptr<Drafter>> drafter =
      make_drafter(context, *config, parts_of(*pair.target), ids, DType::kF32, seed);
  EXPECT_TRUE(drafter.ok()) << drafter.status().message();
  pair.drafter = std::move(drafter).value();
  if (!warm.empty()) {
    const Result<InitialValues> taken = warm_start(context, *pair.drafter, *pair.target, warm);
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    return pair;
  }
  for (const auto& parameter : pair.drafter->parameters()) {
    std::vector<float> values = device.floats(parameter->value);
    // Norms away from 1, and products large enough for attention to matter.
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] *=
          parameter->value.view().rank() == 1 ? 0.8f + 0.05f * static_cast<float>(i % 9) : 5.0f;
    }
    context.device.copy_bytes(context.stream, parameter->value.view().data(), values.data(),
                              values.size() * sizeof(float));
    EXPECT_TRUE(context.stream.wait_idle().ok());
  }
  pair.drafter->weights_changed(context);
  return pair;
}

}  // namespace percheron

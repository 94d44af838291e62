#include "tests/model/training_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.h"

namespace percheron {
namespace {

std::vector<float> normals(Random random, int64_t count, double deviation) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(deviation * random.normal());
  return values;
}

Tensor to_device(TestDevice& device, const std::vector<float>& values,
                 std::initializer_list<int64_t> shape) {
  Context& context = device.context();
  Tensor tensor = std::move(context.device.make_tensor(DType::kF32, shape)).value();
  context.device.copy_bytes(context.stream, tensor.view().data(), values.data(),
                            tensor.view().bytes());
  PERCHERON_CHECK(context.stream.wait_idle().ok(), "a copy failed");
  return tensor;
}

ModelConfig small_body() {
  ModelConfig body;
  body.model_type = "llama";
  body.hidden_size = 10;
  body.intermediate_size = 11;
  body.num_hidden_layers = 1;
  body.num_attention_heads = 3;
  body.num_key_value_heads = 1;
  body.head_dim = 4;
  body.vocab_size = 23;
  body.max_position_embeddings = 64;
  body.rms_norm_eps = 1e-5;
  body.rope.theta = 100;
  body.rope.original_max_position_embeddings = 64;
  return body;
}

}  // namespace

TrainingDocument random_document(uint64_t seed, int64_t length, int64_t answer,
                                 int64_t vocabulary) {
  Random random = Random::keyed(seed, "document", static_cast<uint64_t>(length));
  TrainingDocument document;
  for (int64_t i = 0; i < length; ++i) {
    document.token_ids.push_back(
        static_cast<uint32_t>(random.below(static_cast<uint64_t>(vocabulary))));
    document.loss_mask.push_back(i >= answer ? 1 : 0);
  }
  return document;
}

Features random_features(uint64_t seed, const std::vector<TrainingDocument>& documents,
                         int64_t states, int64_t hidden, uint64_t first_sample) {
  Features features;
  features.dtype = DType::kF32;
  features.slots = states + 1;
  features.hidden_size = hidden;
  features.has_last = true;
  MicroBatch& batch = features.batch;
  batch.offsets.push_back(0);
  for (size_t d = 0; d < documents.size(); ++d) {
    const TrainingDocument& document = documents[d];
    batch.token_ids.insert(batch.token_ids.end(), document.token_ids.begin(),
                           document.token_ids.end());
    batch.loss_mask.insert(batch.loss_mask.end(), document.loss_mask.begin(),
                           document.loss_mask.end());
    batch.offsets.push_back(static_cast<int32_t>(batch.token_ids.size()));
    batch.sample_ids.push_back(first_sample + d);
    const int64_t count = static_cast<int64_t>(document.token_ids.size()) * features.slots * hidden;
    const std::vector<float> values =
        normals(Random::keyed(seed, "states", first_sample + d), count, 1.0);
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    features.hidden_states.insert(features.hidden_states.end(), bytes,
                                  bytes + values.size() * sizeof(float));
  }
  return features;
}

TrainingTarget::TrainingTarget(TestDevice& device, uint64_t seed, int64_t vocabulary,
                               int64_t hidden)
    : embedding(normals(Random::keyed(seed, "embedding"), vocabulary * hidden, 0.7)),
      head(normals(Random::keyed(seed, "head"), vocabulary * hidden, 0.7)),
      final_norm(normals(Random::keyed(seed, "final norm"), hidden, 0.2)) {
  for (float& weight : final_norm) weight += 1.0f;
  device_embedding = to_device(device, embedding, {vocabulary, hidden});
  device_head = to_device(device, head, {vocabulary, hidden});
  device_final_norm = to_device(device, final_norm, {hidden});
  parts = {device_embedding, device_head, device_final_norm, 1e-5};
}

void fill_top1(const TrainingTarget& target, Features& features) {
  const MicroBatch& batch = features.batch;
  const size_t hidden = target.final_norm.size();
  const auto* states = reinterpret_cast<const float*>(features.hidden_states.data());
  features.top1.assign(batch.token_ids.size(), -1);
  for (int64_t d = 0; d < batch.documents(); ++d) {
    for (int32_t t = batch.offsets[d]; t + 1 < batch.offsets[d + 1]; ++t) {
      if (batch.loss_mask[t + 1] == 0) continue;
      const float* last =
          states + (static_cast<size_t>(t + 1) * static_cast<size_t>(features.slots) - 1) * hidden;
      double best = -1e30;
      for (size_t v = 0; v < target.head.size() / hidden; ++v) {
        double logit = 0;  // The norm's positive factor does not change the choice.
        for (size_t i = 0; i < hidden; ++i) {
          logit +=
              static_cast<double>(last[i]) * target.final_norm[i] * target.head[v * hidden + i];
        }
        if (logit > best) {
          best = logit;
          features.top1[t] = static_cast<int32_t>(v);
        }
      }
    }
  }
}

DrafterConfig small_eagle3_config() {
  DrafterConfig config;
  config.kind = DrafterKind::kEagle3;
  config.body = small_body();
  config.target_hidden_size = config.body.hidden_size;
  config.num_target_layers = 4;
  config.capture = {1, 3};
  config.draft_vocab_size = static_cast<int64_t>(small_draft_ids(config.body.vocab_size).size());
  return config;
}

DrafterConfig small_dflash_config() {
  DrafterConfig config;
  config.kind = DrafterKind::kDflash;
  config.body = small_body();
  config.body.num_hidden_layers = 2;
  config.body.qk_norm = true;
  config.body.sliding_window = {0, 0};
  config.target_hidden_size = config.body.hidden_size;
  config.num_target_layers = 4;
  config.capture = {1, 2, 3};
  config.draft_vocab_size = config.body.vocab_size;
  config.block_size = 4;
  config.mask_token_id = 22;
  return config;
}

std::vector<int32_t> small_draft_ids(int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int32_t id = 1; id < vocabulary; id += 3) ids.push_back(id);
  return ids;
}

void randomise(TestDevice& device, uint64_t seed, Drafter& drafter) {
  Context& context = device.context();
  for (const auto& parameter : drafter.parameters()) {
    const TensorView view = parameter->value.view();
    const bool norm = view.rank() == 1;
    const double deviation = norm ? 0.2 : 0.6 / std::sqrt(static_cast<double>(view.dim(1)) / 4);
    std::vector<float> values =
        normals(Random::keyed(seed, parameter->name), view.elements(), deviation);
    for (float& value : values) value += norm ? 1.0f : 0.0f;
    context.device.copy_bytes(context.stream, view.data(), values.data(), view.bytes());
    PERCHERON_CHECK(context.stream.wait_idle().ok(), "a copy failed");
  }
  drafter.weights_changed(context);
}

std::map<std::string, std::vector<float>> take_gradients(TestDevice& device, Drafter& drafter) {
  std::map<std::string, std::vector<float>> gradients;
  for (const auto& parameter : drafter.parameters()) {
    if (!parameter->trainable) continue;
    gradients[parameter->name] = device.floats(parameter->gradient);
    device.context().device.ops().fill_zero(device.context(), parameter->gradient);
  }
  return gradients;
}

double relative_difference(const std::map<std::string, std::vector<float>>& a,
                           const std::map<std::string, std::vector<float>>& b) {
  double worst = a.size() == b.size() ? 0.0 : 1e30;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size()) return 1e30;
    double largest = 1e-6, difference = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max<double>(largest, std::abs(values[i]));
      difference = std::max<double>(difference, std::abs(values[i] - other->second[i]));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

}  // namespace percheron

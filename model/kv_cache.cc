#include <cstdint>
#include <limits>
#include <string>

#include "model/target.h"

namespace percheron {

Result<std::unique_ptr<KvCache>> KvCache::make(Device& device, const ModelConfig& config,
                                               int64_t slots, int64_t length, DType dtype) {
  PERCHERON_CHECK(slots > 0 && length > 0, "a cache has at least one slot of one row");
  if (slots > std::numeric_limits<int32_t>::max() / length) {
    return resource_exhausted("a key/value cache of " + std::to_string(slots) + " slots with " +
                              std::to_string(length) +
                              " tokens each exceeds 2^31 rows: use fewer slots");
  }
  auto cache = std::make_unique<KvCache>();
  cache->slots_ = slots;
  cache->length_ = length;
  cache->used.assign(static_cast<size_t>(slots), 0);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (std::vector<Tensor>* side : {&cache->keys_, &cache->values_}) {
      Result<Tensor> tensor =
          device.make_tensor(dtype, {slots * length, config.num_key_value_heads, config.head_dim});
      if (!tensor.ok()) {
        return tensor.status().with_context("key/value cache of " + std::to_string(slots) +
                                            " slots, " + std::to_string(length) + " tokens each");
      }
      side->push_back(std::move(tensor).value());
    }
  }
  return cache;
}

TensorView KvCache::keys(int64_t layer) const { return keys_[static_cast<size_t>(layer)]; }
TensorView KvCache::values(int64_t layer) const { return values_[static_cast<size_t>(layer)]; }

}  // namespace percheron

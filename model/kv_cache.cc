#include <cstdint>
#include <limits>
#include <string>

#include "model/target.h"

namespace percheron {

namespace {

Status check_rows(int64_t slots, int64_t length) {
  PERCHERON_CHECK(slots > 0 && length > 0, "a cache has at least one slot of one row");
  if (slots <= std::numeric_limits<int32_t>::max() / length) return ok_status();
  return resource_exhausted("a key/value cache of " + std::to_string(slots) + " slots with " +
                            std::to_string(length) +
                            " tokens each exceeds 2^31 rows: use fewer slots");
}

std::string described(int64_t slots, int64_t length) {
  return "key/value cache of " + std::to_string(slots) + " slots, " + std::to_string(length) +
         " tokens each";
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::make(Device& device, const ModelConfig& config,
                                               int64_t slots, int64_t length, DType dtype) {
  PERCHERON_RETURN_IF_ERROR(check_rows(slots, length));
  auto cache = std::make_unique<KvCache>();
  cache->slots_ = slots;
  cache->length_ = length;
  cache->used.assign(static_cast<size_t>(slots), 0);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (std::vector<Tensor>* side : {&cache->keys_, &cache->values_}) {
      Result<Tensor> tensor =
          device.make_tensor(dtype, {slots * length, config.num_key_value_heads, config.head_dim});
      if (!tensor.ok()) return tensor.status().with_context(described(slots, length));
      side->push_back(std::move(tensor).value());
    }
  }
  return cache;
}

Status KvCache::grow(Context& context, int64_t length) {
  PERCHERON_CHECK(length >= length_, "a cache that grows keeps what it holds");
  PERCHERON_RETURN_IF_ERROR(check_rows(slots_, length));
  for (std::vector<Tensor>* side : {&keys_, &values_}) {
    for (Tensor& tensor : *side) {
      const TensorView old = tensor;
      Result<Tensor> grown =
          context.device.make_tensor(old.dtype(), {slots_ * length, old.dim(1), old.dim(2)});
      if (!grown.ok()) return grown.status().with_context(described(slots_, length));
      const TensorView wide = *grown;
      for (int64_t slot = 0; slot < slots_; ++slot) {
        const int64_t rows = used[static_cast<size_t>(slot)];
        if (rows == 0) continue;
        const TensorView from = old.rows(slot * length_, slot * length_ + rows);
        const TensorView to = wide.rows(slot * length, slot * length + rows);
        context.device.copy_bytes(context.stream, to.data(), from.data(), from.bytes());
      }
      PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());  // before the old memory goes
      tensor = std::move(grown).value();
    }
  }
  length_ = length;
  return ok_status();
}

TensorView KvCache::keys(int64_t layer) const { return keys_[static_cast<size_t>(layer)]; }
TensorView KvCache::values(int64_t layer) const { return values_[static_cast<size_t>(layer)]; }

}  // namespace percheron

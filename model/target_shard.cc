#include "model/target_shard.h"

#include <fmt/format.h>

#include <cstring>

namespace percheron {

ConstTensorView share_of(const ConstTensorView& stored, Split split, const TargetShard& shard,
                         std::vector<std::byte>& gathered) {
  if (split == Split::kNone || shard.size == 1) return stored;
  const int64_t extent = split == Split::kOutputs ? stored.dim(0) : stored.dim(1);
  const int64_t share = extent / shard.size, begin = share * shard.rank;
  if (split == Split::kOutputs) return stored.rows(begin, begin + share);
  const ConstTensorView columns = stored.columns(begin, begin + share);
  const size_t row_bytes = static_cast<size_t>(share) * dtype_bytes(stored.dtype());
  gathered.resize(static_cast<size_t>(stored.dim(0)) * row_bytes);
  for (int64_t row = 0; row < stored.dim(0); ++row) {
    std::memcpy(gathered.data() + static_cast<size_t>(row) * row_bytes,
                columns.rows(row, row + 1).data(), row_bytes);
  }
  return ConstTensorView(gathered.data(), stored.dtype(), {stored.dim(0), share});
}

Status check_tensor_parallel(const ModelConfig& config, int64_t size) {
  const struct {
    const char* name;
    int64_t value;
  } shared[] = {{"num_attention_heads", config.num_attention_heads},
                {"num_key_value_heads", config.num_key_value_heads},
                {"intermediate_size", config.intermediate_size}};
  for (const auto& [name, value] : shared) {
    if (value % size == 0) continue;
    return invalid_argument(
        fmt::format("placement.tensor_parallel is {}, but the target's {} of {} can't be shared "
                    "evenly among so many devices: use a number that divides it",
                    size, name, value));
  }
  return ok_status();
}

}  // namespace percheron

#include "data/feature_region.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/hash.h"
#include "data/feature_block.h"
#include "data/region_file.h"

namespace percheron {
namespace {

// Copied, then summed up from the processor's cache.
constexpr size_t kPieceBytes = size_t{256} << 10;

}  // namespace

Result<FeatureRegion> write_feature_region(RegionPool& pool, const Features& features) {
  PERCHERON_ASSIGN_OR_RETURN(const SafetensorsContent content, lay_out_feature_block(features));
  PERCHERON_ASSIGN_OR_RETURN(SharedRegion region, pool.take(content.bytes));
  const bool used_before = region.written_bytes() > 0;
  FeatureRegion result{std::move(region), content.bytes, 0, used_before};
  const Status reserved = result.region.reserve(0, content.bytes);
  if (!reserved.ok()) return reserved.with_context("shared memory for features");
  std::span<std::byte> at = result.region.writable_bytes();
  const auto append = [&](std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t piece = std::min(kPieceBytes, bytes.size());
      std::memcpy(at.data(), bytes.data(), piece);
      result.crc32c = crc32c(at.first(piece), result.crc32c);
      at = at.subspan(piece);
      bytes = bytes.subspan(piece);
    }
  };
  append(std::as_bytes(std::span(content.header)));
  for (const ConstTensorView& tensor : content.tensors) {
    append({static_cast<const std::byte*>(tensor.data()), tensor.bytes()});
  }
  result.region.note_written(content.bytes);
  return result;
}

Result<Features> read_feature_region(FileDescriptor fd, uint64_t bytes, uint32_t crc) {
  PERCHERON_ASSIGN_OR_RETURN(
      SharedRegion mapped,
      SharedRegion::map_at_least(std::move(fd), bytes, SharedRegion::Access::kRead));
  const auto region = std::make_shared<const SharedRegion>(std::move(mapped));
  PERCHERON_ASSIGN_OR_RETURN(Features features,
                             read_feature_block(*region_file(region, bytes), "shared memory"));
  // After the copy: what is handed out is what has been checked.
  if (crc32c(region->bytes().first(bytes)) != crc) {
    return data_loss("the features in shared memory contradict the checksum of their ticket");
  }
  return features;
}

}  // namespace percheron

#include "data/micro_batch.h"

#include <cstddef>

#include "base/check.h"
#include "base/hash.h"

namespace percheron {
namespace {

template <class T>
uint32_t add_crc(const std::vector<T>& values, uint32_t crc) {
  return crc32c(std::as_bytes(std::span(values)), crc);
}

}  // namespace

MicroBatch select_documents(const MicroBatch& batch, std::span<const int32_t> documents) {
  MicroBatch part;
  part.id = batch.id;
  part.offsets = {0};
  for (const int32_t d : documents) {
    PERCHERON_CHECK(0 <= d && d < batch.documents(), "document outside the micro-batch");
    const int32_t begin = batch.offsets[d], end = batch.offsets[d + 1];
    part.token_ids.insert(part.token_ids.end(), batch.token_ids.begin() + begin,
                          batch.token_ids.begin() + end);
    part.loss_mask.insert(part.loss_mask.end(), batch.loss_mask.begin() + begin,
                          batch.loss_mask.begin() + end);
    part.offsets.push_back(static_cast<int32_t>(part.tokens()));
    part.sample_ids.push_back(batch.sample_ids[d]);
    if (!batch.padding.empty()) part.padding.push_back(batch.padding[d]);
  }
  return part;
}

uint32_t micro_batch_crc32c(const MicroBatch& batch) {
  const int64_t id[] = {batch.id.epoch, batch.id.index, batch.tokens(), batch.documents()};
  uint32_t crc = crc32c(std::as_bytes(std::span(id)));
  crc = add_crc(batch.token_ids, crc);
  crc = add_crc(batch.loss_mask, crc);
  crc = add_crc(batch.offsets, crc);
  crc = add_crc(batch.sample_ids, crc);
  return add_crc(batch.padding, crc);
}

}  // namespace percheron

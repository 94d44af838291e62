#include "data/features.h"

#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace percheron {
namespace {

void append_document(const Features& from, size_t document, Features& to) {
  const auto begin = static_cast<std::ptrdiff_t>(from.batch.offsets[document]);
  const auto end = static_cast<std::ptrdiff_t>(from.batch.offsets[document + 1]);
  const MicroBatch& rows = from.batch;
  MicroBatch& all = to.batch;
  all.token_ids.insert(all.token_ids.end(), rows.token_ids.begin() + begin,
                       rows.token_ids.begin() + end);
  all.loss_mask.insert(all.loss_mask.end(), rows.loss_mask.begin() + begin,
                       rows.loss_mask.begin() + end);
  all.offsets.push_back(static_cast<int32_t>(all.token_ids.size()));
  all.sample_ids.push_back(rows.sample_ids[document]);
  if (!rows.padding.empty()) all.padding.push_back(rows.padding[document]);
  const FeatureShape shape = from.shape();
  const auto* states = from.hidden_states.data();
  to.hidden_states.insert(to.hidden_states.end(), states + shape.hidden_bytes(begin),
                          states + shape.hidden_bytes(end));
  if (shape.has_top1) {
    to.top1.insert(to.top1.end(), from.top1.begin() + begin, from.top1.begin() + end);
  }
}

}  // namespace

Features merge_documents(const MicroBatch& batch, const Features& first, const Features& second) {
  PERCHERON_CHECK(first.shape() == second.shape(), "parts of one micro-batch have one shape");
  std::unordered_map<uint64_t, std::pair<const Features*, size_t>> documents;
  for (const Features* part : {&first, &second}) {
    for (size_t d = 0; d < part->batch.sample_ids.size(); ++d) {
      documents.insert({part->batch.sample_ids[d], {part, d}});
    }
  }
  Features all = empty_like(first);
  all.batch.id = batch.id;
  all.hidden_states.reserve(first.hidden_states.size() + second.hidden_states.size());
  for (const uint64_t sample : batch.sample_ids) {
    const auto found = documents.find(sample);
    if (found != documents.end()) {
      append_document(*found->second.first, found->second.second, all);
    }
  }
  return all;
}

Features empty_like(const Features& features) {
  Features empty;
  empty.batch.offsets = {0};
  empty.dtype = features.dtype;
  empty.slots = features.slots;
  empty.hidden_size = features.hidden_size;
  empty.has_last = features.has_last;
  empty.fingerprint = features.fingerprint;
  return empty;
}

void append_documents(const Features& features, Features& all) {
  PERCHERON_CHECK(features.slots == all.slots && features.hidden_size == all.hidden_size &&
                      features.dtype == all.dtype,
                  "features of one shape are put together");
  for (size_t d = 0; d < features.batch.sample_ids.size(); ++d) append_document(features, d, all);
}

}  // namespace percheron

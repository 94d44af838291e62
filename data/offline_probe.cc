#include <algorithm>

#include "data/offline_features.h"

namespace percheron {
namespace {

// Files of one sample that are looked into before training, of each directory.
constexpr size_t kProbesMax = 8;
// Rows of each directory that show what a peer's slots hold: enough for a median.
constexpr int64_t kExcerptRows = 16;

}  // namespace

Status OfflineFeatures::probe(uint32_t directory, const TokenDataset& train,
                              const SampleSelection& selection) {
  std::vector<size_t> here;
  for (size_t i = 0; i < selection.samples.size(); ++i) {
    const auto place = places_.find(selection.samples[i]);
    if (place != places_.end() && place->second.directory == directory) here.push_back(i);
  }
  const std::string& path = directories_[directory].path;
  if (here.empty()) {
    // Everything that it has may lie in a directory before it.
    if (directory > 0) return ok_status();
    return invalid_argument(path + " holds features of no sample that the run trains on");
  }
  const size_t probes = std::min(kProbesMax, here.size());
  int64_t found = 0;
  std::string first;
  std::vector<Probe> peers;
  for (size_t p = 0; p < probes; ++p) {
    const size_t i = here[p * here.size() / probes];
    const uint32_t sample = selection.samples[i];
    PERCHERON_ASSIGN_OR_RETURN(
        const Look seen,
        look(sample, train.tokens(sample).first(static_cast<size_t>(selection.lengths[i]))));
    if (seen.verdict == Verdict::kFound || seen.verdict == Verdict::kTooShort) {
      ++found;
      directories_[directory].row_bytes = seen.file->slots() * seen.file->hidden_size() *
                                          static_cast<int64_t>(dtype_bytes(seen.file->dtype()));
      if (seen.verdict == Verdict::kFound && seen.slots == &peer_slots_) {
        peers.push_back({sample, selection.lengths[i], seen});
      }
    } else if (first.empty()) {
      first = seen.why;
    }
  }
  keep_excerpts(std::move(peers), train);
  if (found > 0) return ok_status();
  return invalid_argument(path + ": none of " + std::to_string(probes) +
                          " samples that were looked at can be used; " + first);
}

// The shortest samples: under a dynamic rope the target must run over the whole of them.
void OfflineFeatures::keep_excerpts(std::vector<Probe> probes, const TokenDataset& train) {
  std::stable_sort(probes.begin(), probes.end(),
                   [](const Probe& a, const Probe& b) { return a.length < b.length; });
  PeerFiles kept;
  int64_t rows = 0;
  for (const Probe& probe : probes) {
    if (rows == kExcerptRows) break;
    const auto tokens = train.tokens(probe.sample).first(static_cast<size_t>(probe.length));
    kept.excerpts.push_back(excerpt(probe.look, tokens, kExcerptRows - rows));
    rows += kept.excerpts.back().rows;
  }
  if (rows == 0) return;
  coverage_.peer_rows += rows;
  peer_files_.push_back(std::move(kept));
}

PeerExcerpt OfflineFeatures::excerpt(const Look& look, std::span<const uint32_t> tokens,
                                     int64_t rows_max) const {
  PeerExcerpt result;
  result.path = look.file->path();
  result.rows = std::min(rows_max, static_cast<int64_t>(tokens.size()));
  const size_t run = options_.whole_samples_only ? tokens.size() : static_cast<size_t>(result.rows);
  result.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(run));
  const ConstTensorView states = look.file->states(look.document);
  for (size_t s = 0; s < look.slots->slots.size(); ++s) {
    PeerSlot slot;
    slot.slot = look.slots->slots[s];
    slot.from_last = slot.slot == static_cast<int64_t>(options_.peer_capture.size());
    slot.state = slot.from_last ? options_.target_layers + (look.slots->divide_last ? 1 : 0)
                                : options_.peer_capture[static_cast<size_t>(slot.slot)];
    for (int64_t row = 0; row < result.rows; ++row) {
      const int64_t first = (row * states.dim(1) + slot.slot) * states.dim(2);
      for (int64_t c = 0; c < states.dim(2); ++c) {
        slot.values.push_back(float_at(states, first + c));
      }
    }
    result.slots.push_back(std::move(slot));
  }
  return result;
}

}  // namespace percheron

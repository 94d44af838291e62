#include "data/epoch_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>

#include "base/hash.h"
#include "base/random.h"
#include "base/units.h"
#include "data/token_shard.h"

namespace percheron {
namespace {

Status nothing_left(const SampleSelection& selection, int64_t samples) {
  return invalid_argument("none of the " + format_count(static_cast<uint64_t>(samples)) +
                          " samples can be trained on: " +
                          format_count(static_cast<uint64_t>(selection.too_long_skipped)) +
                          " are longer than data.token_budget, " +
                          format_count(static_cast<uint64_t>(selection.unsupervised_dropped)) +
                          " have no supervised token");
}

// Applies the rules to samples 0 .. count - 1. `length(i)` gives tokens, `supervised(i, n)` says
// whether any of the first n is supervised, `name(i)` describes the sample.
template <class Length, class Supervised, class Name>
Result<SampleSelection> select(int64_t count, const PlanOptions& options, Length length,
                               Supervised supervised, Name name) {
  if (options.token_budget < 1 || options.token_budget > std::numeric_limits<int32_t>::max())
    return invalid_argument("data.token_budget is " + std::to_string(options.token_budget) +
                            ", expected 1 to 2147483647");
  if (count > std::numeric_limits<uint32_t>::max())
    return invalid_argument("the data set has " + format_count(static_cast<uint64_t>(count)) +
                            " samples, at most 4,294,967,295 are supported");
  SampleSelection selection;
  int64_t first_too_long = -1, too_long = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t used = length(i);
    if (used > options.token_budget) {
      if (too_long++ == 0) first_too_long = i;
      if (options.too_long == TooLong::kSkip) {
        ++selection.too_long_skipped;
        continue;
      }
      used = options.token_budget;
    }
    if (options.unsupervised == Unsupervised::kDrop && !supervised(i, used)) {
      ++selection.unsupervised_dropped;
      continue;
    }
    if (used < length(i)) ++selection.truncated;
    selection.samples.push_back(static_cast<uint32_t>(i));
    selection.lengths.push_back(static_cast<int32_t>(used));
    selection.tokens += used;
  }
  if (too_long > 0 && options.too_long == TooLong::kRefuse)
    return invalid_argument(
        format_count(static_cast<uint64_t>(too_long)) + " of " +
        format_count(static_cast<uint64_t>(count)) + " samples are longer than data.token_budget " +
        std::to_string(options.token_budget) + ", the first is " + name(first_too_long) + " with " +
        std::to_string(length(first_too_long)) +
        " tokens; raise the budget or set data.too_long to truncate or skip");
  if (selection.samples.empty()) return nothing_left(selection, count);
  return selection;
}

struct Draw {
  uint32_t sample;
  int32_t length;
};

// Micro-batches that still have room, in the order in which they were opened. What they hold are
// draws: positions in the epoch's random order, chained so that no micro-batch needs memory of its
// own.
class OpenBins {
 public:
  OpenBins(int64_t token_budget, size_t draws)
      : token_budget_(static_cast<int32_t>(token_budget)), next_(draws) {
    rooms_.fill(kNoRoom);
  }

  struct Bin {
    int32_t room = 0;
    uint32_t first = 0;
    uint32_t last = 0;
  };

  // Puts the draw into the first bin with room. Returns the bin that this fills or displaces.
  std::optional<Bin> add(uint32_t draw, int32_t length) {
    const size_t b = first_fit(length);
    if (b < open_) {
      next_[bins_[b].last] = draw;
      bins_[b].last = draw;
      rooms_[b] -= length;
      if (rooms_[b] > 0) return std::nullopt;
      return take(b);
    }
    const Bin fresh = {token_budget_ - length, draw, draw};
    if (fresh.room == 0) return fresh;
    std::optional<Bin> displaced;
    if (open_ == rooms_.size()) {
      // The fullest has least hope of another sample; the oldest of equals.
      displaced = take(std::min_element(rooms_.begin(), rooms_.end()) - rooms_.begin());
    }
    rooms_[open_] = fresh.room;
    bins_[open_++] = fresh;
    return displaced;
  }

  // The oldest bin, if one is open.
  std::optional<Bin> take_oldest() { return open_ == 0 ? std::nullopt : std::optional(take(0)); }
  // The draw after `draw` in its bin; only for others than its last.
  uint32_t next(uint32_t draw) const { return next_[draw]; }

 private:
  static constexpr int32_t kNoRoom = -1;
  static constexpr size_t kBlock = 16;
  static_assert(kOpenBinsMax % kBlock == 0);

  // The first bin with room for `length`, or open_. Blocks without any are skipped at once: this is
  // where the time goes.
  size_t first_fit(int32_t length) const {
    for (size_t block = 0; block < open_; block += kBlock) {
      int32_t room_max = kNoRoom;
      for (size_t b = block; b < block + kBlock; ++b) room_max = std::max(room_max, rooms_[b]);
      if (room_max < length) continue;
      size_t b = block;
      while (rooms_[b] < length) ++b;
      return b;
    }
    return open_;
  }

  Bin take(size_t b) {
    Bin bin = bins_[b];
    bin.room = rooms_[b];
    // The order stays: the oldest and fullest are tried first, which packs more densely.
    std::copy(rooms_.begin() + b + 1, rooms_.begin() + open_, rooms_.begin() + b);
    std::copy(bins_.begin() + b + 1, bins_.begin() + open_, bins_.begin() + b);
    rooms_[--open_] = kNoRoom;
    return bin;
  }

  const int32_t token_budget_;
  size_t open_ = 0;
  std::array<int32_t, kOpenBinsMax> rooms_;  // Apart from bins_: the search reads nothing else.
  std::array<Bin, kOpenBinsMax> bins_{};
  std::vector<uint32_t> next_;
};

template <class T>
uint32_t add_crc(const std::vector<T>& values, uint32_t crc) {
  return crc32c(std::as_bytes(std::span(values)), crc);
}

}  // namespace

Result<SampleSelection> select_samples(const TokenDataset& dataset, const PlanOptions& options) {
  const auto supervised_within = [&](int64_t i, int64_t used) {
    if (used == dataset.length(i)) return dataset.supervised(i) > 0;
    const auto mask = dataset.mask(i).first(static_cast<size_t>(used));
    return std::find(mask.begin(), mask.end(), 1) != mask.end();
  };
  return select(
      dataset.samples(), options, [&](int64_t i) { return dataset.length(i); }, supervised_within,
      [&](int64_t i) { return dataset.describe(i); });
}

Result<SampleSelection> select_samples(std::span<const int64_t> lengths,
                                       const PlanOptions& options) {
  return select(
      static_cast<int64_t>(lengths.size()), options,
      [&](int64_t i) { return lengths[static_cast<size_t>(i)]; },
      [](int64_t, int64_t used) { return used > 0; },
      [](int64_t i) { return "sample " + std::to_string(i); });
}

EpochPlan EpochPlan::make(const SampleSelection& selection, const PlanOptions& options,
                          int64_t epoch) {
  PERCHERON_CHECK(selection.samples.size() == selection.lengths.size(),
                  "a selection has one length per sample");
  // Samples and lengths are shuffled together: looked up later, each would be a cache miss.
  std::vector<Draw> order(selection.samples.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = {selection.samples[i], selection.lengths[i]};
  Random random = Random::keyed(options.seed, "epoch order", static_cast<uint64_t>(epoch));
  shuffle(std::span(order), random);

  EpochPlan plan;
  plan.epoch_ = epoch;
  plan.token_budget_ = options.token_budget;
  plan.order_.reserve(order.size());
  OpenBins bins(options.token_budget, order.size());
  const auto close = [&](const OpenBins::Bin& bin) {
    for (uint32_t draw = bin.first;; draw = bins.next(draw)) {
      plan.order_.push_back(order[draw].sample);
      if (draw == bin.last) break;
    }
    plan.offsets_.push_back(static_cast<int64_t>(plan.order_.size()));
    plan.tokens_.push_back(static_cast<int32_t>(options.token_budget - bin.room));
  };
  for (size_t draw = 0; draw < order.size(); ++draw) {
    const auto full = bins.add(static_cast<uint32_t>(draw), order[draw].length);
    if (full) close(*full);
  }
  while (const auto rest = bins.take_oldest()) close(*rest);
  return plan;
}

std::span<const uint32_t> EpochPlan::samples(int64_t index) const {
  PERCHERON_CHECK(0 <= index && index < micro_batches(), "micro-batch index outside the epoch");
  const auto begin = static_cast<size_t>(offsets_[static_cast<size_t>(index)]);
  const auto end = static_cast<size_t>(offsets_[static_cast<size_t>(index) + 1]);
  return std::span(order_).subspan(begin, end - begin);
}

double EpochPlan::fill() const {
  double tokens = 0;
  for (const int32_t count : tokens_) tokens += count;
  return micro_batches() == 0 ? 0 : tokens / static_cast<double>(token_budget_ * micro_batches());
}

std::string EpochPlan::hash() const {
  ContentHash hash;
  hash.add(std::as_bytes(std::span(&epoch_, 1)));
  hash.add(std::as_bytes(std::span(offsets_)));
  hash.add(std::as_bytes(std::span(order_)));
  hash.add(std::as_bytes(std::span(tokens_)));
  return hash.hex();
}

MicroBatch make_micro_batch(const TokenDataset& dataset, const EpochPlan& plan, int64_t index) {
  MicroBatch batch;
  batch.id = {plan.epoch(), index};
  batch.token_ids.reserve(static_cast<size_t>(plan.tokens(index)));
  batch.loss_mask.reserve(static_cast<size_t>(plan.tokens(index)));
  batch.offsets = {0};
  for (const uint32_t sample : plan.samples(index)) {
    const auto tokens = dataset.tokens(sample);
    const auto mask = dataset.mask(sample);
    // Only a sample that was cut is longer than the whole micro-batch.
    const size_t used = std::min(tokens.size(), static_cast<size_t>(plan.tokens(index)));
    batch.token_ids.insert(batch.token_ids.end(), tokens.begin(), tokens.begin() + used);
    batch.loss_mask.insert(batch.loss_mask.end(), mask.begin(), mask.begin() + used);
    batch.offsets.push_back(static_cast<int32_t>(batch.tokens()));
    batch.sample_ids.push_back(sample);
  }
  PERCHERON_CHECK(batch.tokens() == plan.tokens(index), "the plan was made for another data set");
  return batch;
}

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
  }
  return part;
}

uint32_t micro_batch_crc32c(const MicroBatch& batch) {
  const int64_t id[] = {batch.id.epoch, batch.id.index, batch.tokens(), batch.documents()};
  uint32_t crc = crc32c(std::as_bytes(std::span(id)));
  crc = add_crc(batch.token_ids, crc);
  crc = add_crc(batch.loss_mask, crc);
  crc = add_crc(batch.offsets, crc);
  return add_crc(batch.sample_ids, crc);
}

}  // namespace percheron

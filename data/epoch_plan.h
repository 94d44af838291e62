#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "data/length_buckets.h"
#include "data/micro_batch.h"

namespace percheron {

class TokenDataset;
struct Draw;
struct PaddedBatches;

/// In which order an epoch visits its samples, and how they become micro-batches (data.order).
enum class EpochOrder {
  kPacked,    // a fresh random order each epoch, samples packed into the token budget, no padding
  kSorted,    // padded batches of neighbours in length, shortest first, the same in every epoch
  kShuffled,  // padded batches of a fresh random order each epoch
  kBucketed,  // shuffled within buckets of length each epoch, padded, the buckets interleaved
};
inline constexpr EpochOrder kEpochOrders[] = {EpochOrder::kSorted, EpochOrder::kShuffled,
                                              EpochOrder::kBucketed, EpochOrder::kPacked};

/// As data.order spells it: "packed".
std::string_view epoch_order_name(EpochOrder order);
inline bool is_padded(EpochOrder order) { return order != EpochOrder::kPacked; }

/// What becomes of samples longer than the token budget (data.too_long).
enum class TooLong { kRefuse, kTruncate, kSkip };

/// What becomes of samples in which no token is supervised: they cost a target forward pass and
/// teach nothing.
enum class Unsupervised { kDrop, kKeep };

struct PlanOptions {
  uint64_t seed = 42;
  EpochOrder order = EpochOrder::kPacked;
  int64_t token_budget = 4096;     // tokens of a micro-batch, padding included, at most
  int64_t batch_samples_max = 64;  // samples of a padded micro-batch, at most
  int64_t buckets = 6;             // of kBucketed, at most
  BucketBounds bucket_bounds = {};      // of kBucketed, by resolve_buckets()
  TooLong too_long = TooLong::kRefuse;
  Unsupervised unsupervised = Unsupervised::kDrop;
};

/// The samples that take part in every epoch, and how many of their tokens.
struct SampleSelection {
  std::vector<uint32_t> samples;  // positions in the data set, ascending
  std::vector<int32_t> lengths;   // tokens used of each, 1 .. token_budget
  int64_t tokens = 0;             // sum of `lengths`
  int64_t truncated = 0;          // samples cut to the token budget
  int64_t too_long_skipped = 0;
  int64_t unsupervised_dropped = 0;
};

/// Applies the options' rules to every sample. Truncation keeps a sample's first tokens, and what
/// holds no supervised token after it counts as unsupervised. kInvalidArgument names the first
/// sample that is too long under kRefuse (and how many are), or says that nothing is left and why.
Result<SampleSelection> select_samples(const TokenDataset& dataset, const PlanOptions& options);

/// As above, from lengths alone, all supervised.
Result<SampleSelection> select_samples(std::span<const int32_t> lengths,
                                       const PlanOptions& options);

/// Under kBucketed: sets options.bucket_bounds to those with the least padding for the selection,
/// by PaddingModel::kExpectedMaximum. Else does nothing. kInvalidArgument for numbers beyond their
/// limits and for samples beyond kLengthMax.
Status resolve_buckets(const SampleSelection& selection, PlanOptions& options);

/// One epoch's micro-batches as lists of samples: a pure function of (selection, options, epoch),
/// the same on every machine. Every selected sample occurs exactly once. Immutable.
class EpochPlan {
 public:
  /// Packing is first-fit over at most kOpenBinsMax open micro-batches in a random order, so that
  /// the time is linear; a micro-batch's samples stand in the order in which they were drawn.
  /// options must be those of the selection, after resolve_buckets(). 10 million samples take about
  /// two seconds.
  static EpochPlan make(const SampleSelection& selection, const PlanOptions& options,
                        int64_t epoch);

  int64_t epoch() const { return epoch_; }
  int64_t micro_batches() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  /// The samples of micro-batch `index`, as positions in the data set.
  std::span<const uint32_t> samples(int64_t index) const;
  /// Its tokens, padding included.
  int64_t tokens(int64_t index) const { return tokens_[static_cast<size_t>(index)]; }
  /// Whether each sample of a micro-batch is padded to the longest: tokens / samples.
  bool padded() const { return padded_; }
  /// Of all micro-batches, padding included.
  int64_t total_tokens() const;
  /// Tokens of all micro-batches divided by what they could hold.
  double fill() const;
  /// Tokens of the samples divided by those of all micro-batches: 1 without padding.
  double efficiency() const;
  /// Hash of the whole order, to compare machines and resumed runs.
  std::string hash() const;

 private:
  void take_packed(std::span<const Draw> draws, int64_t token_budget);
  void take_padded(const PaddedBatches& batches);

  int64_t epoch_ = 0;
  int64_t token_budget_ = 0;
  bool padded_ = false;
  int64_t sample_tokens_ = 0;           // without padding
  std::vector<int64_t> offsets_ = {0};  // [M + 1] into order_
  std::vector<uint32_t> order_;         // [samples]
  std::vector<int32_t> tokens_;         // [M]
};

/// Gathers the rows of micro-batch `index` of `plan`. Samples longer than the plan's share of them
/// are cut at their end. In a padded plan every document is extended to the longest by unsupervised
/// copies of its own last token, counted in MicroBatch::padding: of any vocabulary, and unseen by
/// the rows before them.
MicroBatch make_micro_batch(const TokenDataset& dataset, const EpochPlan& plan, int64_t index);

}  // namespace percheron

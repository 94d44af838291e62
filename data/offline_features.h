#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/epoch_plan.h"
#include "data/feature_file.h"
#include "data/features.h"
#include "data/fingerprint.h"
#include "data/token_shard.h"

namespace percheron {

/// What the slot after the captured states holds in files that don't say (features.from_last).
enum class LastSlot { kNone, kBeforeNorm, kAfterNorm };

/// Where a run's features may lie, and what they must be.
struct OfflineOptions {
  std::vector<std::string> directories;  // features.from; the first that has a sample gives it
  FeatureShape shape;                    // what the run trains on
  std::vector<int64_t> capture;          // the run's
  int64_t target_layers = 0;             // the state of this number is the last layer's output
  int64_t target_vocab_size = 0;
  Fingerprint fingerprint;               // what files that Percheron wrote must carry
  std::string run_fingerprint;           // digest that features carry in memory
  std::vector<int64_t> peer_capture;     // features.from_capture
  LastSlot peer_last = LastSlot::kNone;  // features.from_last
  /// A sample's beginning has other states than the whole sample, as under a dynamic rope.
  bool whole_samples_only = false;
};

/// What lies there of a run's samples, by names and sizes alone.
struct OfflineCoverage {
  int64_t samples = 0;      // that the run trains on
  int64_t found = 0;        // of these, in files that are long enough
  uint64_t file_bytes = 0;  // of the run's rows in them
  int64_t peer_rows = 0;    // on which is checked what peers' files are stated to hold
  int64_t missing() const { return samples - found; }
};

/// A slot of a peer's file: what it is stated to be, and what it holds.
struct PeerSlot {
  int64_t slot = 0;           // of the file
  int64_t state = 0;          // as in drafter.capture; the target's layers + 1: the last, normed
  bool from_last = false;     // stated by features.from_last
  std::vector<float> values;  // [rows, H] as they lie there
};

/// The first rows of a sample in a peer's file.
struct PeerExcerpt {
  std::string path;
  std::vector<int32_t> tokens;  // to run the target over, so that the rows get their states
  int64_t rows = 0;             // of the first tokens
  std::vector<PeerSlot> slots;  // those that the run reads, in its order
};

/// Excerpts of a directory with files that don't say what their slots hold; at least one.
struct PeerFiles {
  std::vector<PeerExcerpt> excerpts;
};

/// Counted by sample, each time that one was wanted.
struct OfflineCounters {
  int64_t read = 0;
  int64_t absent = 0;        // in no directory
  int64_t too_short = 0;     // fewer rows than the run trains on
  int64_t other_tokens = 0;  // its tokens are not the sample's
  int64_t unusable = 0;      // truncated, of another shape or type, not finite
};

/// Features of a micro-batch's documents as far as they lie in files.
struct TakenFeatures {
  Features features;                  // of the documents that were found, in their order
  std::vector<int32_t> missing;       // the micro-batch's other documents, ascending
  std::vector<int32_t> without_top1;  // documents of `features` whose file has no top1: -1 there
};

/// Reads features that were captured before, by Percheron or by a peer: `hs_N.safetensors` of one
/// sample each (N = the sample's number in data.train) or shards of many. Only shards are opened
/// ahead, other files when a micro-batch wants them. A file is never trusted: tokens, types, shapes
/// and finiteness are checked at each use, and only the rows that the run trains on are copied,
/// however long the file is (AngelSlim#288). Thread-safe.
class OfflineFeatures {
 public:
  /// Lists the directories, opens their shards and looks into a few other files of each.
  /// kFailedPrecondition names the field in which the fingerprint of a file of Percheron's differs
  /// from the run's; kInvalidArgument a directory without features, features of other samples or
  /// tokens, files of a peer whose slots are not stated or lack a state that the run needs, and a
  /// directory of which no file that was looked into can be used. `train` is borrowed.
  static Result<std::unique_ptr<OfflineFeatures>> open(FileSystem& files, OfflineOptions options,
                                                       const TokenDataset& train,
                                                       const SampleSelection& selection);

  /// Divides the last slot of peers' files by the final norm's weight [H]: what the norm then makes
  /// of it is the state that the peer stored. Needed before take() under LastSlot::kAfterNorm.
  /// kInvalidArgument for a weight of 0.
  Status set_final_norm(std::span<const float> weight);

  const OfflineCoverage& coverage() const { return coverage_; }
  /// What shows whether peers' files hold the states that they are stated to hold: a few rows of
  /// each directory that has some. Empty without peers' files.
  const std::vector<PeerFiles>& peer_files() const { return peer_files_; }
  /// Copies what lies there of `batch`. kFailedPrecondition as open(), for a file that it did not
  /// look into.
  Result<TakenFeatures> take(const MicroBatch& batch);
  OfflineCounters counters() const;

 private:
  struct Directory {
    std::string path;
    int64_t row_bytes = 0;  // of its files of one sample, of those looked into
  };
  struct Place {
    uint32_t directory = 0;
    std::shared_ptr<const FeatureFile> shard;  // null for a file of one sample
    int32_t document = 0;
  };
  /// Which slot of a file is which of the run's, in the run's order.
  struct SlotMap {
    std::vector<int64_t> slots;
    int64_t file_slots = 0;
    bool divide_last = false;
  };
  enum class Verdict { kFound, kAbsent, kTooShort, kOtherTokens, kUnusable };
  struct Look {
    Verdict verdict = Verdict::kAbsent;
    std::string why;
    std::shared_ptr<const FeatureFile> file;
    int64_t document = 0;
    const SlotMap* slots = nullptr;
  };
  struct Probe {
    uint32_t sample = 0;
    int64_t length = 0;  // that the run trains on
    Look look;
  };

  OfflineFeatures(FileSystem& files, OfflineOptions options);
  Status add_directory(const std::string& path);
  Status add_shard(uint32_t directory, const std::string& path);
  Status state_peer_slots();
  Status probe(uint32_t directory, const TokenDataset& train, const SampleSelection& selection);
  /// Of a peer's file that was looked into, at most `rows_max` rows.
  PeerExcerpt excerpt(const Look& look, std::span<const uint32_t> tokens, int64_t rows_max) const;
  void keep_excerpts(std::vector<Probe> probes, const TokenDataset& train);
  void measure(const SampleSelection& selection);
  Result<Look> look(uint64_t sample, std::span<const uint32_t> tokens) const;
  Result<const SlotMap*> slots_of(const FeatureFile& file) const;
  void check(Look& look, std::span<const uint32_t> tokens) const;
  /// Of one of the run's slots, as it is trained on.
  float value(const Look& look, const ConstTensorView& states, int64_t row, size_t slot,
              int64_t channel) const;
  bool becomes_infinite(const Look& look, int64_t rows) const;
  void copy(const Look& look, int64_t begin, int64_t rows, Features& features) const;
  void count(const Look& look, uint64_t sample);
  std::string path_of(uint64_t sample, const Place& place) const;

  FileSystem& files_;
  const OfflineOptions options_;
  const std::string fingerprint_text_;
  std::vector<Directory> directories_;
  std::unordered_map<uint64_t, Place> places_;
  SlotMap own_slots_, own_slots_with_last_, peer_slots_;
  std::vector<float> inverse_norm_;  // [H] or empty
  OfflineCoverage coverage_;
  std::vector<PeerFiles> peer_files_;
  mutable std::mutex mutex_;
  OfflineCounters counters_;
};

}  // namespace percheron

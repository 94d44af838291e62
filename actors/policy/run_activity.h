#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/policy/bottleneck.h"
#include "actors/policy/duration_histogram.h"
#include "actors/policy/number_map.h"
#include "actors/policy/occupation.h"
#include "actors/policy/worker_roll.h"
#include "base/clock.h"

namespace percheron {

/// What a run is at, as its supervisor sees it.
struct RunPhase {
  enum class Step {
    kLoading,
    kHeldOut,  // features of held-out data are made, before the first step
    kBetween,  // no step is open: a checkpoint or an evaluation is waited for
    kComputing,
    kReducing,
    kUpdating,
    kOver,
  };
  Step step = Step::kLoading;
  bool evaluating = false;
  bool copying = false;  // parameters for a checkpoint
  bool operator==(const RunPhase&) const = default;
};
inline constexpr size_t kRunPhases = 7;
/// In one word, as metrics and people read it: "loading", "training", ...
std::string_view phase_word(const RunPhase& phase);

/// Where a run's workers are.
struct RunLayout {
  std::vector<std::string> target_devices, trainer_devices;  // "cpu:0", of each worker
};

/// What one home of the mailbox holds.
struct HomeQueue {
  int64_t tickets = 0;
  uint64_t bytes = 0;  // of their features
};

/// What the mailbox holds.
struct MailboxState {
  std::map<int, HomeQueue> homes;
  size_t queued_later = 0;     // tickets of steps that are not open yet
  bool features_late = false;  // of the open step some are not made yet
};

/// What has changed of it: only homes that did, the rest as it is now.
struct MailboxChange {
  std::vector<std::pair<int, HomeQueue>> homes;
  size_t queued_later = 0;
  bool features_late = false;
};

/// Features of one node in memory and beside it.
struct StoreState {
  uint64_t reserved_bytes = 0, published_bytes = 0, lingering_bytes = 0, bytes_max = 0;
  uint64_t cache_memory_bytes = 0, cache_disk_bytes = 0;
  int64_t cache_hits = 0, cache_misses = 0;
};

/// What a device's driver says, where there is one.
struct DeviceHealth {
  double power_watts = 0;
  double utilization = 0;  // share of time with work, in [0, 1]
  uint64_t memory_used_bytes = 0, memory_bytes = 0;
};

struct WorkerActivity {
  std::string device;
  Occupation now = Occupation::kIdle;
  OccupationSeconds seconds;
  int64_t micro_batches = 0, tokens = 0, samples = 0;
  int64_t ahead = 0;         // micro-batches that a trainer holds beside the one that it is at
  uint64_t ahead_bytes = 0;  // of their features
};

/// Everything that is counted of a run while it goes on, at one moment. Counts go on from the
/// beginning of the RunActivity, whatever was resumed in it.
struct RunActivitySnapshot {
  std::vector<WorkerActivity> targets, trainers;
  MailboxState mailbox;
  std::map<std::pair<int, int>, int64_t> steals;  // by thief and victim
  std::map<int64_t, int64_t> in_flight;  // micro-batches leased or made, not freed, by bucket bound
  RunPhase phase;
  std::array<DurationHistogram, kRunPhases> phase_seconds;  // by RunPhase::Step
  StoreState store;
  int64_t quarantined = 0;
  std::array<int64_t, 2> lease_expirations{}, restarts{};  // by WorkerKind
  std::map<std::string, DeviceHealth> devices;             // those that tell
  Bottleneck bottleneck = Bottleneck::kUnknown;
  RunTimes window;  // that the bottleneck was judged by
  // Of all targets, all trainers together, while they compute; over the window.
  double capture_samples_per_second = 0, train_samples_per_second = 0;
  int targets_here = 0, trainers_here = 0;  // of which these are: who is lost does not count
  double silent_seconds = 0;                // since the supervisor was last seen
  double seconds = 0;                       // since the RunActivity was made
};

/// What the actors of a run say about their work to those who watch it. Each call takes a lock for
/// the time of a few additions; a reader holds it for a copy. Thread-safe.
class RunActivity {
 public:
  /// The bottleneck and the capacities are those of the last kWindowSamples, one every
  /// kSampleSeconds.
  static constexpr size_t kWindowSamples = 60;
  static constexpr double kSampleSeconds = 1;

  /// `clock` is borrowed.
  explicit RunActivity(const Clock& clock) : clock_(clock), made_(now()) {}

  /// A run begins, or goes on after a pause: nobody works yet, nothing is queued. Counts go on.
  void begin(const RunLayout& layout);

  // The sampler.
  /// `bucket`: none where the micro-batch is handed out again and was not freed.
  void target_leased(int target, std::optional<int64_t> bucket);
  /// `more`: the target has another micro-batch, which it begins, or goes on with, now.
  void target_settled(int target, int64_t tokens, int64_t samples, double seconds, bool more);
  /// The target would take a micro-batch and gets none, because of kRoom or kWork. It is idle once
  /// it has none left.
  void target_waits(int target, Occupation why);
  void freed(int64_t bucket);

  // The mailbox.
  /// `victim`: the home that the ticket was stolen from.
  void trainer_leased(int trainer, std::optional<int> victim);
  /// The same beside what the trainer is at; `bytes` are those of the features.
  void trainer_leased_ahead(int trainer, std::optional<int> victim, uint64_t bytes);
  /// `fetch_seconds`: in which the trainer waited for the features of this one.
  void trainer_settled(int trainer, int64_t tokens, int64_t samples, double seconds,
                       double fetch_seconds = 0);
  /// A lease of a trainer is over without being computed.
  void trainer_gave_up(int trainer, bool holds_others, uint64_t bytes);
  /// It has computed what was taken from it meanwhile.
  void trainer_worked_in_vain(int trainer, int64_t tokens, int64_t samples);
  /// What the trainers held was taken from all of them.
  void trainers_hold_nothing();
  /// It has nothing to do. Work that it was given before and did not settle counts no more.
  void trainer_waits(int trainer);
  void mailbox(const MailboxChange& changed);

  // The supervisor.
  void phase(const RunPhase& phase);
  void quarantined(int64_t samples);
  /// Now and then, with what the store holds.
  void tick(const StoreState& store);

  /// One more worker, with the next number: until it is restarted() it is away.
  void added(WorkerKind kind, const std::string& device);
  /// A worker is dead: until it is restarted, what is said of it counts no more.
  void lost(WorkerKind kind, int number);
  void restarted(WorkerKind kind, int number);
  /// So many micro-batches that a lost worker had are handed out again.
  void leases_expired(WorkerKind lost, int64_t micro_batches);

  // Whoever watches devices.
  /// None: the device does not tell any more.
  void health(const std::string& device, const std::optional<DeviceHealth>& health);

  RunActivitySnapshot snapshot() const;

 private:
  struct Worker {
    std::string device;
    OccupationClock clock;
    int64_t micro_batches = 0, tokens = 0, samples = 0;
    bool away = false;                     // lost, and not restarted yet
    Occupation after = Occupation::kIdle;  // a target's, once it has settled all that it has
    std::deque<uint64_t> ahead_bytes{};    // of each that a trainer holds ahead
  };
  struct Totals {
    double time = 0;
    OccupationSeconds targets, trainers;
    int64_t target_samples = 0, trainer_samples = 0;
  };

  Worker& worker(WorkerKind kind, int number);
  double now() const { return static_cast<double>(clock_.monotonic_ns()) * 1e-9; }
  struct Settled {
    int64_t tokens = 0, samples = 0;
    double seconds = 0, fetch_seconds = 0;
  };
  static void settle(Worker& worker, const Settled& work, Occupation reason, double now);
  static void count(Worker& worker, int64_t tokens, int64_t samples);
  /// The worker is idle because of `why`, or has a job; what it had before is over.
  static void wait(Worker& worker, Occupation why, double now);
  static void begin_job(Worker& worker, double now);
  /// What an idle trainer waits for.
  Occupation trainer_waits_for() const;
  /// Idle trainers wait for something else from now on, if they do.
  void tell_trainers(double now);
  Totals totals(double now) const;
  void sample(double now);

  const Clock& clock_;
  const double made_;
  mutable std::mutex mutex_;
  std::vector<Worker> targets_, trainers_;
  bool shared_device_ = false;
  Occupation trainers_wait_for_ = Occupation::kIdle;  // the idle ones
  NumberMap<HomeQueue> homes_;                        // of the mailbox
  RunActivitySnapshot kept_;  // all but what is worked out when it is asked for
  double phase_since_ = 0, seen_ = 0;
  int64_t quarantined_before_ = 0;  // in this run, by its last word
  StoreState cache_before_;         // likewise
  std::deque<Totals> window_;
  BottleneckJudge judge_;
};

}  // namespace percheron

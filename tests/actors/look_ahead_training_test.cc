// Runs of real actors whose trainers fetch, and upload, the features of micro-batches ahead.

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/actors/forwarding_trainer.h"
#include "tests/actors/mortal_workers.h"

namespace percheron {
namespace {

constexpr std::chrono::seconds kPatience{10};

/// What a trainer's fetches, uploads and computations are at, as a test sees them from outside.
class Watch {
 public:
  void fetch_begins(MicroBatchId id) {
    const std::lock_guard lock(mutex_);
    fetches_while_computing_ += computing_ ? 1 : 0;
    asked_.insert(id);
    changed_.notify_all();
  }
  void compute_begins() { compute(true); }
  void compute_ends() { compute(false); }
  void uploaded(MicroBatchId id) {
    const std::lock_guard lock(mutex_);
    uploads_while_computing_ += computing_ ? 1 : 0;
    uploaded_.insert(id);
    changed_.notify_all();
  }
  /// False if the next of its step is not fetched, or uploaded, within kPatience.
  bool wait_fetch(MicroBatchId id) { return wait(asked_, id); }
  bool wait_upload(MicroBatchId id) { return wait(uploaded_, id); }

  int fetches_while_computing() const { return fetches_while_computing_; }
  int uploads_while_computing() const { return uploads_while_computing_; }

 private:
  void compute(bool begins) {
    const std::lock_guard lock(mutex_);
    computing_ = begins;
  }
  bool wait(const std::set<MicroBatchId>& list, MicroBatchId id) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return list.count(id) != 0; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool computing_ = false;
  int fetches_while_computing_ = 0, uploads_while_computing_ = 0;
  std::set<MicroBatchId> asked_, uploaded_;
};

/// Gives features out only after a while, each in a thread of its own: a slow link.
class SlowFeatures final : public FeatureExchange {
 public:
  SlowFeatures(std::unique_ptr<FeatureExchange> inner, Watch& watch,
               std::chrono::milliseconds delay)
      : inner_(std::move(inner)), watch_(watch), delay_(delay) {}
  ~SlowFeatures() override {
    for (std::thread& thread : threads_) thread.join();
  }
  Status publish(FeaturesPtr features, Produced& produced) override {
    return inner_->publish(std::move(features), produced);
  }
  void fetch(const Ticket& ticket, Done done) override {
    watch_.fetch_begins(ticket.id);
    const std::lock_guard lock(mutex_);
    threads_.emplace_back([this, ticket, done = std::move(done)]() mutable {
      std::this_thread::sleep_for(delay_);
      inner_->fetch(ticket, std::move(done));
    });
  }
  bool held_out_is_elsewhere() const override { return inner_->held_out_is_elsewhere(); }

 private:
  const std::unique_ptr<FeatureExchange> inner_;
  Watch& watch_;
  const std::chrono::milliseconds delay_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

enum class Awaits { kNothing, kNextFetch, kNextUpload };

/// Ends no micro-batch but the last of its step before what it awaits of the next has happened.
class WatchedTrainer final : public ForwardingTrainer {
 public:
  WatchedTrainer(std::unique_ptr<StepTrainer> inner, Watch& watch, Awaits awaits,
                 const StepPlan& steps)
      : ForwardingTrainer(std::move(inner)), watch_(watch), awaits_(awaits), steps_(steps) {}

  Result<StepSums> add(Context& context, const Features& features) override {
    watch_.compute_begins();
    Result<StepSums> sums = ForwardingTrainer::add(context, features);
    const MicroBatchId id = features.batch.id;
    const MicroBatchId next{id.epoch, id.index + 1};
    if (!is_last(id) && awaits_ == Awaits::kNextFetch) {
      EXPECT_TRUE(watch_.wait_fetch(next));
    }
    if (!is_last(id) && awaits_ == Awaits::kNextUpload) {
      EXPECT_TRUE(watch_.wait_upload(next));
    }
    watch_.compute_ends();
    return sums;
  }
  Status prepare(const FeaturesPtr& features) override {
    const MicroBatchId id = features->batch.id;
    const Status status = ForwardingTrainer::prepare(features);
    watch_.uploaded(id);
    return status;
  }

 private:
  bool is_last(MicroBatchId id) const {
    for (int64_t step = 0; step < steps_.steps(); ++step) {
      const PlannedStep range = steps_.at(step);
      if (range.contains(id)) return id.index == range.first + range.count - 1;
    }
    return true;
  }

  Watch& watch_;
  const Awaits awaits_;
  const StepPlan& steps_;
};

struct Watched {
  std::string masters;
  int64_t steps = 0;
  int fetches = 0, uploads = 0;     // while another micro-batch was computed
  int64_t found = -1, missed = -1;  // states that were on the device already, or not
  double features_seconds = 0;      // that the trainer waited for features
};

Watched run_watched(const std::string& name, uint64_t prefetch, Awaits awaits,
                    const std::string& device = "") {
  proto::Run run = make_tiny_run(name, {.epochs = 1, .micro_batches_per_step = 4});
  if (!device.empty()) run.mutable_placement()->set_trainers(0, device);
  run.mutable_mailbox()->set_prefetch_bytes(prefetch);
  Watch watch;
  std::shared_ptr<const RunSetup> setup;
  std::shared_ptr<RunActivity> activity;
  const StateUpload* upload = nullptr;
  MortalRun watched(run);
  watched.prepare = [&](RunParts& parts) {
    setup = parts.setup;
    activity = parts.activity;
    parts.exchange = std::make_unique<SlowFeatures>(std::move(parts.exchange), watch,
                                                    std::chrono::milliseconds(5));
    std::unique_ptr<StepTrainer>& trainer = parts.trainers[0].trainer;
    upload = static_cast<DrafterTrainer&>(*trainer).upload();
    trainer = std::make_unique<WatchedTrainer>(std::move(trainer), watch, awaits, setup->steps);
  };
  Watched seen;
  watched.on_step = [&](const StepReport&) {
    if (upload == nullptr) return;
    seen.found = upload->found();
    seen.missed = upload->missed();
  };
  const Result<RunSummary> summary = watched.train();
  EXPECT_TRUE(summary.ok()) << summary.status().message();
  if (!summary.ok()) return seen;
  EXPECT_EQ(summary->steps, summary->steps_total);
  seen.masters = latest_masters(run);
  seen.steps = summary->steps;
  seen.fetches = watch.fetches_while_computing();
  seen.uploads = watch.uploads_while_computing();
  seen.features_seconds = activity->snapshot().trainers[0].seconds[Occupation::kFeatures];
  return seen;
}

TEST(LookAheadTraining, FeaturesAreFetchedWhileAnotherMicroBatchIsComputed) {
  const Watched by_turns = run_watched("look_ahead_none", 0, Awaits::kNothing);
  EXPECT_EQ(by_turns.fetches, 0);
  const Watched ahead = run_watched("look_ahead_one", 1, Awaits::kNextFetch);
  EXPECT_EQ(ahead.masters, by_turns.masters) << "a single trainer has the same bits";
  EXPECT_EQ(ahead.uploads, 0) << "a CPU copies nothing";
  EXPECT_GT(by_turns.features_seconds, 2 * 0.005 * static_cast<double>(by_turns.steps));
}

TEST(LookAheadTraining, StatesAreOnTheirWayToTheDeviceBeforeTheEndOfTheMicroBatchBefore) {
  if (!open_device({DeviceKind::kEmulated, 0}, {}).ok()) GTEST_SKIP() << "no emulator here";
  const Watched by_turns = run_watched("look_ahead_no_upload", 0, Awaits::kNothing, "emulated:0");
  EXPECT_EQ(by_turns.uploads, 0);
  EXPECT_EQ(by_turns.found, -1) << "nothing is kept for uploads";
  const Watched ahead =
      run_watched("look_ahead_upload", 1 << 30, Awaits::kNextUpload, "emulated:0");
  EXPECT_GE(ahead.found, 2 * ahead.steps);
  EXPECT_GT(ahead.missed, 0) << "the first of each step";
  EXPECT_EQ(ahead.masters, by_turns.masters);
}

}  // namespace
}  // namespace percheron

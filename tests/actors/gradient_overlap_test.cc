// Sums between devices that begin while the last backward passes of a step go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <set>
#include <thread>

#include "actors/batch_source.h"
#include "actors/device_sums.h"
#include "actors/step_trainer.h"
#include "tests/actors/mortal_workers.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using testing::HasSubstr;

constexpr uint64_t kEachTensorByItself = 1;
constexpr auto kLong = std::chrono::seconds(60);

bool has_emulator() { return open_device({DeviceKind::kEmulated, 0}, {}).ok(); }

/// A group's end that says when a sum is done.
class ToldCollective final : public DeviceCollective {
 public:
  using DeviceCollective::all_reduce_sum;
  ToldCollective(std::unique_ptr<DeviceCollective> inner, std::promise<void>& first)
      : inner_(std::move(inner)), first_(first) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_reduce_sum(Stream& stream, std::span<const ReducedTensor> tensors) override {
    inner_->all_reduce_sum(stream, tensors);
    if (sums_++ == 0) first_.set_value();
  }
  Status wait_idle(Stream& stream) override { return inner_->wait_idle(stream); }
  void abort(const std::string& why) override { inner_->abort(why); }

 private:
  std::unique_ptr<DeviceCollective> inner_;
  std::promise<void>& first_;
  int sums_ = 0;
};

/// Holds the pass, once its first gradient is complete, until that has been summed.
class HoldingListener final : public GradientListener {
 public:
  HoldingListener(GradientListener& inner, std::future<void> first_sum)
      : inner_(inner), first_sum_(std::move(first_sum)) {}
  void complete(Context& context, const Parameter& parameter) override {
    inner_.complete(context, parameter);
    if (!first_sum_.valid()) return;
    EXPECT_EQ(first_sum_.wait_for(kLong), std::future_status::ready) << parameter.name;
    first_sum_ = {};
  }

 private:
  GradientListener& inner_;
  std::future<void> first_sum_;
};

/// Reads each bucket as soon as the pass has completed it, by a stream that waits for the bucket
/// and for nothing else.
class ReadingListener final : public GradientListener {
 public:
  explicit ReadingListener(GradientBuckets& buckets, Device& device)
      : buckets_(buckets), device_(device), stream_(device.make_stream()) {}
  void complete(Context& context, const Parameter& parameter) override {
    buckets_.complete(context, parameter);
    told_.insert(parameter.gradient.view().data());
    const auto told = [this](const ReducedTensor& each) { return told_.count(each.x.data()) != 0; };
    while (read_ < buckets_.count() && std::ranges::all_of(buckets_.at(read_), told)) {
      ASSERT_TRUE(buckets_.wait_for(read_, 0, *stream_));
      early_.push_back(read(read_++));
    }
  }
  /// The bucket's gradients as they are now.
  std::vector<std::vector<float>> read(size_t bucket) {
    std::vector<std::vector<float>> values;
    for (const ReducedTensor& each : buckets_.at(bucket)) {
      values.emplace_back(static_cast<size_t>(each.x.elements()));
      device_.copy_bytes(*stream_, values.back().data(), each.x.data(), each.x.bytes());
    }
    EXPECT_TRUE(stream_->wait_idle().ok());
    return values;
  }
  const std::vector<std::vector<std::vector<float>>>& early() const { return early_; }

 private:
  GradientBuckets& buckets_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::set<const void*> told_;
  size_t read_ = 0;
  std::vector<std::vector<std::vector<float>>> early_;
};

class GradientOverlap : public testing::TestWithParam<DeviceKind> {
 protected:
  static constexpr int kRanks = 2;
  struct Rank {
    std::unique_ptr<TestDevice> device;
    std::unique_ptr<Target> target;
    std::unique_ptr<DrafterTrainer> trainer;
    std::promise<void> first_sum;
    std::unique_ptr<HoldingListener> listener;
    std::unique_ptr<DeviceSums> sums;
  };

  void SetUp() override {
    if (GetParam() == DeviceKind::kEmulated && !has_emulator()) GTEST_SKIP() << "no emulator here";
    const proto::Run run = make_tiny_run("overlap", {.dflash = true});
    auto setup = resolve_run(run, system_files());
    ASSERT_TRUE(setup.ok()) << setup.status().message();
    setup_ = *setup;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(make_rank({GetParam(), rank}));
      features_.push_back(capture_features(ranks_[0].device->context(), *ranks_[0].target,
                                           BatchSource(setup_, system_clock()).make({0, rank}),
                                           DType::kF32, Top1::kYes)
                              .value());
    }
  }

  Rank make_rank(DeviceId id) const {
    Rank rank;
    rank.device = std::make_unique<TestDevice>(id, DeviceOptions{.threads = 1});
    TargetOptions options = f32_options(setup_->drafter.capture);
    options.capture_last = true;
    rank.target = load_target(*rank.device, setup_->config.target().path(), options);
    rank.trainer =
        DrafterTrainer::make(rank.device->context(), system_files(), setup_, *rank.target).value();
    return rank;
  }

  /// Groups whose ends tell of their first sum.
  DeviceGroups told_groups(double timeout_seconds) {
    std::vector<DeviceId> devices;
    for (int rank = 0; rank < kRanks; ++rank) devices.push_back({GetParam(), rank});
    const auto connect = [this, timeout_seconds](std::span<const DeviceId> members) {
      Result<DeviceCollectives> ends =
          make_device_collectives(members, {.timeout_seconds = timeout_seconds});
      for (auto& end : *ends) {
        std::promise<void>& first = ranks_[static_cast<size_t>(end->rank())].first_sum;
        end = std::make_unique<ToldCollective>(std::move(end), first);
      }
      return ends;
    };
    return DeviceGroups(devices, connect, 60);
  }

  /// What both trainers come to by sums through host memory.
  uint32_t expected_checksum(StepSums& total) {
    std::vector<float> gradients, others;
    Rank alone = make_rank({GetParam(), 0});
    Context& context = alone.device->context();
    for (size_t i = 0; i < features_.size(); ++i) {
      EXPECT_TRUE(alone.trainer->add(context, features_[i]).ok());
      total.add(*alone.trainer->collect(context, i == 0 ? gradients : others));
      alone.trainer->discard(context);
    }
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] += others[i];
    EXPECT_TRUE(alone.trainer->apply(context, &gradients, total, 0).ok());
    return *alone.trainer->checksum(context);
  }

  std::shared_ptr<const RunSetup> setup_;
  std::vector<Features> features_;
  std::vector<Rank> ranks_;
};

// A bucket's event is behind all that adds to its gradients: on a late device nothing else is done.
TEST_P(GradientOverlap, ABucketIsWholeBehindItsEvent) {
  for (const uint64_t bytes : {kEachTensorByItself, uint64_t{6000}}) {
    Rank rank = make_rank({GetParam(), 0});
    Context& context = rank.device->context();
    ASSERT_TRUE(rank.trainer->sum_between_devices(context, bytes).ok());
    GradientBuckets& buckets = *rank.trainer->buckets();
    ReadingListener listener(buckets, context.device);
    rank.trainer->drafter().set_gradient_listener(&listener);
    const std::shared_ptr<void> work = buckets.announce();
    ASSERT_TRUE(rank.trainer->add(context, features_[0]).ok());
    ASSERT_EQ(listener.early().size(), buckets.count());
    EXPECT_GT(buckets.count(), 3u);
    for (size_t bucket = 0; bucket < buckets.count(); ++bucket) {
      EXPECT_EQ(listener.early()[bucket], listener.read(bucket)) << "bucket " << bucket;
    }
  }
}

// A pass that is told of in pieces is launched in pieces: only the one that others wait for is.
TEST_P(GradientOverlap, OnlyAPassThatMayBeTheLastIsInPieces) {
  Rank alone = make_rank({GetParam(), 0}), rank = make_rank({GetParam(), 0});
  Context& context = rank.device->context();
  ASSERT_TRUE(rank.trainer->sum_between_devices(context, kEachTensorByItself).ok());
  GradientBuckets& buckets = *rank.trainer->buckets();
  const std::atomic<uint64_t>& launched = context.device.counters().graphs_launched;
  const bool graphs = context.device.info().graphs;
  const std::unique_ptr<Stream> sums = context.device.make_stream();
  std::shared_ptr<void> ahead = buckets.announce();
  for (int pass = 0; pass < 4; ++pass) {
    const bool last = pass == 3;
    if (last) ahead.reset();
    const std::shared_ptr<void> work = buckets.announce();
    const uint64_t before = launched;
    ASSERT_TRUE(rank.trainer->add(context, features_[0]).ok());
    ASSERT_TRUE(alone.trainer->add(alone.device->context(), features_[0]).ok());
    EXPECT_EQ(launched - before, graphs && pass > 0 && !last ? 1u : 0u) << "pass " << pass;
  }
  EXPECT_TRUE(buckets.wait_for(buckets.count() - 1, 0, *sums)) << "all of them are over";
  std::vector<float> gradients, expected;
  ASSERT_TRUE(rank.trainer->collect(context, gradients).ok());
  ASSERT_TRUE(alone.trainer->collect(alone.device->context(), expected).ok());
  EXPECT_EQ(gradients, expected);
}

// The first sum is waited for within the pass: it was put in, and done, before the pass ended. And
// what is summed is what the pass comes to.
TEST_P(GradientOverlap, BucketsAreSummedWhileThePassGoesOnToTheSameBits) {
  StepSums total;
  const uint32_t expected = expected_checksum(total);
  DeviceGroups groups = told_groups(60);
  const std::vector<int> members = {0, 1};
  std::vector<std::thread> threads;
  for (int number = 0; number < kRanks; ++number) {
    Rank& rank = ranks_[static_cast<size_t>(number)];
    Context& context = rank.device->context();
    ASSERT_TRUE(rank.trainer->sum_between_devices(context, kEachTensorByItself).ok());
    GradientBuckets& buckets = *rank.trainer->buckets();
    rank.listener = std::make_unique<HoldingListener>(buckets, rank.first_sum.get_future());
    rank.trainer->drafter().set_gradient_listener(rank.listener.get());
    rank.sums = std::make_unique<DeviceSums>(groups, number, buckets, context.device.make_stream());
    std::shared_ptr<void> work = rank.sums->announce(0);
    const int64_t attempt = rank.sums->begin(0, 0).value();
    EXPECT_FALSE(rank.sums->begin(0, 0)) << "begun already";
    threads.emplace_back([&rank, &members, attempt] {  // the reducer
      rank.sums->put_in(*rank.trainer, attempt, members);
      const Status status = rank.sums->wait(0);
      EXPECT_TRUE(status.ok()) << status.message();
    });
    threads.emplace_back([&rank, &context, this, number, work = std::move(work)]() mutable {
      context.device.bind_thread();
      EXPECT_TRUE(rank.trainer->add(context, features_[static_cast<size_t>(number)]).ok());
      work.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Rank& rank : ranks_) {
    Context& context = rank.device->context();
    ASSERT_TRUE(rank.trainer->apply_reduced(context, total, 0).ok());
    EXPECT_EQ(*rank.trainer->checksum(context), expected);
  }
}

// One rank waits in its sums when the other gets another micro-batch: both begin again, in a new
// group, and what was put in before does not count.
TEST_P(GradientOverlap, ATicketAfterTheLastOneBeginsTheSumsAgain) {
  StepSums total;
  const uint32_t expected = expected_checksum(total);
  std::vector<DeviceId> devices = {{GetParam(), 0}, {GetParam(), 1}};
  const auto connect = [](std::span<const DeviceId> of) { return make_device_collectives(of, {}); };
  DeviceGroups groups(devices, connect, 60);
  const std::vector<int> members = {0, 1};
  ASSERT_TRUE(groups.form(0, members).ok());
  for (const int number : members) {
    Rank& rank = ranks_[static_cast<size_t>(number)];
    Context& context = rank.device->context();
    ASSERT_TRUE(rank.trainer->sum_between_devices(context, kEachTensorByItself).ok());
    rank.sums = std::make_unique<DeviceSums>(groups, number, *rank.trainer->buckets(),
                                             context.device.make_stream());
  }
  Rank &first = ranks_[0], &second = ranks_[1];
  const auto add = [&](Rank& rank, size_t index) {
    const auto work = rank.sums->announce(0);
    EXPECT_TRUE(rank.trainer->add(rank.device->context(), features_[index]).ok());
  };
  add(first, 0);
  std::shared_ptr<void> held = second.sums->announce(0);  // and not over: its sums wait for it
  std::vector<std::thread> early;
  for (Rank& rank : ranks_) {
    const int64_t attempt = rank.sums->begin(0, 0).value();
    early.emplace_back([&rank, &members, attempt] {
      rank.sums->put_in(*rank.trainer, attempt, members);
      EXPECT_EQ(rank.sums->wait(0).code(), StatusCode::kUnavailable);
    });
  }
  held.reset();
  add(second, 1);
  for (std::thread& thread : early) thread.join();
  std::vector<std::thread> threads;
  for (Rank& rank : ranks_) {
    const int64_t attempt = rank.sums->begin(0, 1).value();
    threads.emplace_back([&rank, &members, attempt] {
      rank.sums->put_in(*rank.trainer, attempt, members);
      const Status status = rank.sums->wait(0);
      EXPECT_TRUE(status.ok()) << status.message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Rank& rank : ranks_) {
    Context& context = rank.device->context();
    ASSERT_TRUE(rank.trainer->apply_reduced(context, total, 0).ok());
    EXPECT_EQ(*rank.trainer->checksum(context), expected);
  }
}

TEST_P(GradientOverlap, ATrainerThatDoesNotComeIsNamedAfterTheTimeOut) {
  DeviceGroups groups = told_groups(0.05);
  const std::vector<int> members = {0, 1};
  ASSERT_TRUE(groups.form(0, members).ok());
  Rank& rank = ranks_[0];
  Context& context = rank.device->context();
  ASSERT_TRUE(rank.trainer->sum_between_devices(context, kEachTensorByItself).ok());
  DeviceSums sums(groups, 0, *rank.trainer->buckets(), context.device.make_stream());
  sums.put_in(*rank.trainer, sums.begin(7, 0).value(), members);
  const Status status = sums.wait(7);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(),
              HasSubstr("rank 1 of 2 did not come to an all-reduce within 0.05 s"));
}

INSTANTIATE_TEST_SUITE_P(Devices, GradientOverlap,
                         testing::Values(DeviceKind::kCpu, DeviceKind::kEmulated),
                         [](const testing::TestParamInfo<DeviceKind>& info) {
                           return info.param == DeviceKind::kCpu ? "cpu" : "emulated";
                         });

// --- whole runs ----------------------------------------------------------------------------------

/// One target on the processor, and trainers that sum between their devices.
void on_emulated_devices(proto::Run& run, int trainers) {
  place(run, 1, trainers);
  for (int i = 0; i < trainers; ++i) {
    run.mutable_placement()->set_trainers(i, "emulated:" + std::to_string(i));
  }
}

Result<RunSummary> train_in_small_buckets(const proto::Run& run, RunObserver& observer) {
  const std::atomic<int> none{0};
  RunEnvironment environment{system_files(), system_clock(), observer, none, 120, 1};
  environment.gradient_bucket_bytes = 4096;
  return train(run, environment);
}

// Micro-batch i is computed by trainer i modulo their number in both, and summed in their order.
TEST(GradientOverlapRun, IsToTheBitTheRunWhoseSumsGoThroughHostMemory) {
  if (!has_emulator()) GTEST_SKIP() << "no emulator here";
  for (const int trainers : {2, 3}) {
    SCOPED_TRACE(trainers);
    proto::Run run = make_tiny_run(
        "overlap_bits" + std::to_string(trainers),
        {.samples = 12, .epochs = 1, .micro_batches_per_step = 4, .dflash = trainers == 2});
    on_emulated_devices(run, trainers);
    run.mutable_mailbox()->set_assignment(proto::Mailbox::FIXED);
    RecordingObserver by_host;
    ASSERT_TRUE(train_in_small_buckets(run, by_host).ok());
    EXPECT_TRUE(by_host.heard("gradients are summed in host memory: mailbox.assignment: fixed"));
    const std::string expected = latest_masters(run);
    run.mutable_output()->set_directory(run.output().directory() + "_overlapped");
    run.mutable_mailbox()->set_assignment(proto::Mailbox::PER_TRAINER_QUEUE);
    RecordingObserver overlapped;
    const Result<RunSummary> summary = train_in_small_buckets(run, overlapped);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    EXPECT_TRUE(overlapped.heard("gradients are summed between the devices, in buckets of 4"));
    EXPECT_EQ(latest_masters(run), expected);
  }
}

struct DeathCase {
  const char* name;
  Moment moment;
  int count;
};

const TinyOptions kMortalRun = {.samples = 12, .epochs = 2, .micro_batches_per_step = 4};

class GradientOverlapDeath : public testing::TestWithParam<DeathCase> {};

// A trainer dies in its pass or in its sums, while the others have begun theirs: they form a group
// without it, compute the step again, and form another one with it when it has come back.
TEST_P(GradientOverlapDeath, OthersSumAgainWithoutTheDeadOneAndLaterWithIt) {
  if (!has_emulator()) GTEST_SKIP() << "no emulator here";
  const DeathCase& death = GetParam();
  proto::Run alone = make_tiny_run(std::string("overlap_") + death.name + "_alone", kMortalRun);
  RecordingObserver expected;
  ASSERT_TRUE(train_in_small_buckets(alone, expected).ok());
  ASSERT_GE(expected.steps().size(), 3u);
  // Of two the one that is left is alone, and is no more later.
  for (const int trainers : {2, 3}) {
    const bool late = trainers == 3;
    SCOPED_TRACE(testing::Message() << trainers << (late ? ", heard of late" : ""));
    proto::Run run = make_tiny_run(std::string("overlap_") + death.name, kMortalRun);
    on_emulated_devices(run, trainers);
    MortalRun mortal(run);
    mortal.gradient_bucket_bytes = 4096;
    mortal.plan({WorkerKind::kTrainer, 1, death.moment, death.count, 2, late});
    const Result<RunSummary> summary = mortal.train();
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    ASSERT_TRUE(mortal.all_struck()) << "the death must happen";
    EXPECT_TRUE(mortal.heard().heard("gradients are summed between the devices"));
    EXPECT_EQ(counter(*summary, "membership_changes_since_start"), 2);
    EXPECT_EQ(mortal.workers().back().trainers.size(), static_cast<size_t>(trainers));
    const std::map<int64_t, StepReport> steps = mortal.steps();
    ASSERT_EQ(steps.size(), expected.steps().size());
    for (const StepReport& step : expected.steps()) {
      EXPECT_EQ(steps.at(step.step).tokens, step.tokens) << "step " << step.step;
      EXPECT_NEAR(steps.at(step.step).loss, step.loss, 1e-4 * step.loss) << "step " << step.step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, GradientOverlapDeath,
                         testing::Values(DeathCase{"add", Moment::kAdd, 1},
                                         DeathCase{"reduce", Moment::kReduce, 1},
                                         DeathCase{"apply", Moment::kApply, 1}),
                         [](const testing::TestParamInfo<DeathCase>& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace percheron

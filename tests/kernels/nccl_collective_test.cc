#include "kernels/cuda/nccl_collective.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/kernel_stream.h"
#include "tests/kernels/fake_nccl.h"

namespace percheron::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A stream of a GPU that is not there; its work is FakeNccl's.
class GpuStream final : public KernelStream {
 public:
  GpuStream() : KernelStream(&work_) {}
  Status wait_idle() override { return take_error(); }
  void record(Event&) override {}
  void wait_for(const Event&) override {}
  bool idle() const { return work_.outstanding == 0; }

 private:
  FakeNccl::FakeStream work_;
};

class NcclCollectiveTest : public testing::Test {
 protected:
  void TearDown() override {
    group_.clear();
    EXPECT_EQ(nccl_->misuses(), 0);
    EXPECT_EQ(nccl_->alive(), 0) << "every communicator is freed";
  }

  Status connect(int size) {
    std::vector<DeviceId> devices;
    for (int i = 0; i < size; ++i) devices.push_back({DeviceKind::kCuda, i});
    PERCHERON_ASSIGN_OR_RETURN(
        group_, make_nccl_collectives(nccl_, clock_, devices, {.timeout_seconds = 1}));
    return ok_status();
  }

  /// Runs `work(collective, stream)` on a thread per rank, then waits for its stream.
  template <class F>
  std::vector<Status> on_all(F&& work) {
    std::vector<Status> outcomes(group_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < group_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        GpuStream stream;
        work(*group_[rank], stream);
        outcomes[rank] = group_[rank]->wait_idle(stream);
        EXPECT_TRUE(stream.idle()) << "nothing may run on memory that the caller frees";
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  const std::shared_ptr<FakeNccl> nccl_ = std::make_shared<FakeNccl>();
  const SteppingClock clock_;
  DeviceCollectives group_;
};

TensorView view(std::vector<float>& values) {
  return TensorView(values.data(), DType::kF32, {static_cast<int64_t>(values.size())});
}

void sum_once(DeviceCollective& member, Stream& stream) {
  std::vector<float> values(8, 1.f);
  member.all_reduce_sum(stream, view(values));
  EXPECT_TRUE(member.wait_idle(stream).ok());
  EXPECT_EQ(values, std::vector<float>(8, static_cast<float>(member.size())));
}

TEST_F(NcclCollectiveTest, SumsManyTensorsInOneExchangeManyTimes) {
  for (const int size : {1, 2, 4}) {
    ASSERT_TRUE(connect(size).ok());
    const auto outcomes = on_all([&](DeviceCollective& member, Stream& stream) {
      EXPECT_EQ(member.size(), size);
      for (int round = 0; round < 20; ++round) {
        std::vector<float> own(3, static_cast<float>(member.rank())), sum(3, -1.f), empty;
        std::vector<float> in_place(5, static_cast<float>(round));
        const ReducedTensor tensors[] = {
            {view(own), view(sum)}, {view(empty), view(empty)}, {view(in_place), view(in_place)}};
        member.all_reduce_sum(stream, tensors);
        ASSERT_TRUE(member.wait_idle(stream).ok());
        EXPECT_EQ(own[0], static_cast<float>(member.rank()));
        EXPECT_EQ(sum, std::vector<float>(3, static_cast<float>(size * (size - 1) / 2)));
        EXPECT_EQ(in_place, std::vector<float>(5, static_cast<float>(round * size)));
      }
    });
    for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.message();
  }
}

// As a trainer does whose pass is over while another one computes: that takes as long as it takes,
// and the time-out begins with the wait.
TEST_F(NcclCollectiveTest, ARankPutsAllItsSumsInBeforeTheOthersCome) {
  ASSERT_TRUE(connect(2).ok());
  constexpr size_t kSums = 8;
  std::vector<float> values[2][kSums];
  GpuStream streams[2];
  const auto put_in = [&](size_t rank) {
    for (std::vector<float>& each : values[rank]) {
      each.assign(4, static_cast<float>(rank + 1));
      group_[rank]->all_reduce_sum(streams[rank], view(each));
    }
  };
  put_in(0);
  EXPECT_FALSE(streams[0].idle());
  for (int look = 0; look < 5000; ++look) (void)clock_.monotonic_ns();  // five times the time-out
  put_in(1);
  for (size_t rank = 0; rank < 2; ++rank) {
    const Status status = group_[rank]->wait_idle(streams[rank]);
    EXPECT_TRUE(status.ok()) << status.message();
    for (const std::vector<float>& each : values[rank]) {
      EXPECT_EQ(each, std::vector<float>(4, 3.f));
    }
  }
}

TEST_F(NcclCollectiveTest, ARankThatDoesNotComeIsATimeOutForTheOthers) {
  ASSERT_TRUE(connect(3).ok());
  std::vector<std::vector<float>> values(3, std::vector<float>(4));
  const auto outcomes = on_all([&](DeviceCollective& member, Stream& stream) {
    if (member.rank() == 1) return;
    member.all_reduce_sum(stream, view(values[static_cast<size_t>(member.rank())]));
  });
  // The first to run out of patience tells the others.
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(outcomes[rank].code(), StatusCode::kUnavailable);
    EXPECT_THAT(outcomes[rank].message(),
                AllOf(HasSubstr("NCCL on cuda:"), HasSubstr("of 3): an all-reduce was not done "
                                                            "within 1 s: another rank did not")));
  }
  GpuStream late;
  group_[1]->all_reduce_sum(late, view(values[1]));
  EXPECT_THAT(late.wait_idle().message(), HasSubstr("was not done within 1 s"));
  EXPECT_EQ(nccl_->alive(), 0);
}

TEST_F(NcclCollectiveTest, ARankThatNeverConnectsIsATimeOut) {
  nccl_->silent_ranks = {2};
  const Status refused = connect(3);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(
      refused.message(),
      HasSubstr("NCCL on cuda:0 (rank 0 of 3): ncclCommInitRankConfig was not done within"));
}

TEST_F(NcclCollectiveTest, AnErrorFromElsewhereEndsAllWithItsText) {
  nccl_->later_errors = {{1, NcclCode{6}}};
  ASSERT_TRUE(connect(2).ok());
  std::vector<std::vector<float>> values(2, std::vector<float>(4));
  const auto outcomes = on_all([&](DeviceCollective& member, Stream& stream) {
    member.all_reduce_sum(stream, view(values[static_cast<size_t>(member.rank())]));
  });
  for (const Status& outcome : outcomes) {
    EXPECT_EQ(outcome.code(), StatusCode::kUnavailable);
    EXPECT_THAT(outcome.message(),
                HasSubstr("NCCL on cuda:1 (rank 1 of 2): ncclCommGetAsyncError tells of remote "
                          "process exited"));
  }
}

TEST_F(NcclCollectiveTest, ACallThatFailsIsNamed) {
  nccl_->call_errors = {{0, NcclCode{2}}};
  ASSERT_TRUE(connect(2).ok());
  std::vector<std::vector<float>> values(2, std::vector<float>(4));
  std::vector<Status> kept(2);
  const auto outcomes = on_all([&](DeviceCollective& member, Stream& stream) {
    member.all_reduce_sum(stream, view(values[static_cast<size_t>(member.rank())]));
    if (member.rank() == 0) kept[0] = stream.wait_idle();
  });
  EXPECT_EQ(kept[0].code(), StatusCode::kInternal);
  EXPECT_EQ(kept[0].message(),
            "NCCL on cuda:0 (rank 0 of 2): ncclAllReduce: unhandled system error (no route to "
            "host)");
  EXPECT_EQ(outcomes[1].code(), StatusCode::kUnavailable);
  EXPECT_THAT(outcomes[1].message(), HasSubstr("no route to host"));

  nccl_->id_error = NcclCode{2};
  EXPECT_THAT(connect(2).message(), HasSubstr("ncclGetUniqueId: unhandled system error"));
}

TEST_F(NcclCollectiveTest, AnAbortOfALostPeerEndsThoseWhoWait) {
  ASSERT_TRUE(connect(3).ok());
  std::vector<std::vector<float>> values(3, std::vector<float>(4));
  const auto outcomes = on_all([&](DeviceCollective& member, Stream& stream) {
    if (member.rank() == 2) return member.abort("rank 2 of 3 (cuda:2) failed: out of memory");
    member.all_reduce_sum(stream, view(values[static_cast<size_t>(member.rank())]));
  });
  for (const Status& outcome : outcomes) {
    EXPECT_EQ(outcome.code(), StatusCode::kUnavailable);
    EXPECT_EQ(outcome.message(), "rank 2 of 3 (cuda:2) failed: out of memory");
  }
}

TEST_F(NcclCollectiveTest, ThoseWhoAreLeftFormANewMembershipAndSum) {
  ASSERT_TRUE(connect(3).ok());
  group_[1]->abort("rank 1 is gone");
  const auto broken = on_all([](DeviceCollective&, Stream&) {});
  for (const Status& outcome : broken) EXPECT_EQ(outcome.message(), "rank 1 is gone");
  ASSERT_TRUE(connect(2).ok());
  EXPECT_EQ(nccl_->memberships(), 2) << "a new membership has a new id";
  EXPECT_EQ(nccl_->alive(), 2) << "and none of the old communicators";
  for (const Status& outcome : on_all(sum_once)) EXPECT_TRUE(outcome.ok()) << outcome.message();
}

}  // namespace
}  // namespace percheron::cuda

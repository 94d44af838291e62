#include "kernels/device_collective.h"

#include <cstdlib>
#include <thread>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/immediate_stream.h"
#include "kernels/local_device_collective.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Runs `work(collective, stream)` on one thread per rank; each stream's outcome.
template <class F>
std::vector<Status> on_all(const DeviceCollectives& group, F&& work) {
  std::vector<Status> outcomes(group.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ImmediateStream stream;
      work(*group[rank], stream);
      outcomes[rank] = group[rank]->wait_idle(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

TensorView view(std::vector<float>& values) {
  return TensorView(values.data(), DType::kF32, {static_cast<int64_t>(values.size())});
}

TEST(DeviceCollective, SumsInRankOrderInPlaceAndApart) {
  for (const int size : {1, 2, 3, 5}) {
    for (const int64_t n : {0, 1, 2, 4099}) {
      const DeviceCollectives group = make_local_device_collectives(size, {});
      std::vector<std::vector<float>> own(static_cast<size_t>(size)), in_place, sums;
      Random random(7);
      for (auto& rank : own) {
        for (int64_t i = 0; i < n; ++i) rank.push_back(static_cast<float>(random.normal()));
      }
      std::vector<float> expected = own[0];
      for (size_t rank = 1; rank < own.size(); ++rank) {
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += own[rank][i];
      }
      in_place = own;
      sums.assign(own.size(), std::vector<float>(own[0].size(), -1.f));
      const auto outcomes = on_all(group, [&](DeviceCollective& member, Stream& stream) {
        EXPECT_EQ(member.size(), size);
        const auto rank = static_cast<size_t>(member.rank());
        const ReducedTensor tensors[] = {{view(own[rank]), view(sums[rank])},
                                         {view(in_place[rank]), view(in_place[rank])}};
        member.all_reduce_sum(stream, tensors);
      });
      for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.message();
      for (size_t rank = 0; rank < own.size(); ++rank) {
        EXPECT_EQ(sums[rank], expected);
        EXPECT_EQ(in_place[rank], expected);
      }
    }
  }
}

TEST(DeviceCollective, ARankThatDoesNotComeIsNamedAfterTheTimeOut) {
  const DeviceCollectives group = make_local_device_collectives(3, {.timeout_seconds = 0.05});
  const auto outcomes = on_all(group, [](DeviceCollective& member, Stream& stream) {
    std::vector<float> values(4);
    if (member.rank() != 1) member.all_reduce_sum(stream, view(values));
  });
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(outcomes[rank].code(), StatusCode::kUnavailable);
    EXPECT_THAT(outcomes[rank].message(),
                HasSubstr("rank 1 of 3 did not come to an all-reduce within 0.05 s"));
  }
  // The group stays failed: who comes later is told the same.
  ImmediateStream late;
  std::vector<float> values(4);
  group[1]->all_reduce_sum(late, view(values));
  EXPECT_THAT(late.wait_idle().message(), HasSubstr("rank 1 of 3"));
}

TEST(DeviceCollective, AnAbortEndsThoseWhoWaitWithItsReason) {
  const DeviceCollectives group = make_local_device_collectives(2, {});
  const auto outcomes = on_all(group, [](DeviceCollective& member, Stream& stream) {
    std::vector<float> values(4);
    if (member.rank() == 0) member.all_reduce_sum(stream, view(values));
    if (member.rank() == 1) member.abort("rank 1 ran out of memory");
  });
  EXPECT_EQ(outcomes[0].code(), StatusCode::kUnavailable);
  EXPECT_EQ(outcomes[0].message(), "rank 1 ran out of memory");
}

TEST(DeviceCollective, AnEarlierErrorOfAStreamEndsTheGroup) {
  const DeviceCollectives group = make_local_device_collectives(2, {});
  const auto outcomes = on_all(group, [](DeviceCollective& member, Stream& stream) {
    if (member.rank() == 1) stream.fail(resource_exhausted("no memory"));
    std::vector<float> values(4);
    member.all_reduce_sum(stream, view(values));
  });
  EXPECT_EQ(outcomes[0].message(), "rank 1 failed: no memory");
  EXPECT_EQ(outcomes[1].code(), StatusCode::kResourceExhausted);
}

TEST(DeviceCollective, ANewGroupOfThoseWhoAreLeftSumsAgain) {
  DeviceCollectives group = make_local_device_collectives(3, {});
  group.pop_back();
  const auto broken = on_all(group, [](DeviceCollective& member, Stream& stream) {
    std::vector<float> values(4);
    member.all_reduce_sum(stream, view(values));
  });
  for (const Status& outcome : broken) {
    EXPECT_EQ(outcome.message(), "rank 2 left the group");
  }
  group = make_local_device_collectives(2, {});
  const auto outcomes = on_all(group, [](DeviceCollective& member, Stream& stream) {
    std::vector<float> values(4, 1.f);
    member.all_reduce_sum(stream, view(values));
    EXPECT_EQ(values, std::vector<float>(4, 2.f));
  });
  for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.message();
}

/// One emulated device, whose memory the host can't touch, with values that are on their way to it.
struct EmulatedRank {
  EmulatedRank(int number, std::vector<float> given) : values(std::move(given)) {
    device = open_device({DeviceKind::kEmulated, number}, {.threads = 1}).value();
    work = device->make_stream();
    sums = device->make_stream();
    complete = device->make_event();
    const auto count = static_cast<int64_t>(values.size());
    x = device->make_tensor(DType::kF32, {count}).value();
    sum = device->make_tensor(DType::kF32, {count}).value();
    device->copy_bytes(*work, x.view().data(), values.data(), x.view().bytes());
    work->record(*complete);
    device->copy_bytes(*work, x.view().data(), later.data(), later.size() * sizeof(float));
  }

  std::vector<float> values;
  const std::vector<float> later = {-1, -1, -1};
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> work, sums;
  std::unique_ptr<Event> complete;
  Tensor x, sum;
};

// What is summed are the values at the event, not those of later work; and the host touches no
// memory of a device.
TEST(DeviceCollective, EmulatedMemoryIsSummedInTheOrderOfTheStream) {
  if (!open_device({DeviceKind::kEmulated, 0}, {}).ok()) GTEST_SKIP() << "no emulator here";
  ASSERT_EQ(setenv("PERCHERON_EMULATED_GUARD", "1", 1), 0);
  EmulatedRank ranks[] = {{0, {1, 2, 3, 4}}, {1, {10, 20, 30, 40}}};
  ASSERT_EQ(unsetenv("PERCHERON_EMULATED_GUARD"), 0);
  const DeviceId devices[] = {{DeviceKind::kEmulated, 0}, {DeviceKind::kEmulated, 1}};
  const DeviceCollectives group = make_device_collectives(devices, {}).value();
  std::vector<std::thread> threads;
  for (size_t number = 0; number < 2; ++number) {
    threads.emplace_back([&rank = ranks[number], &end = *group[number]] {
      rank.sums->wait_for(*rank.complete);
      const ReducedTensor apart{rank.x, rank.sum};
      for (int times = 0; times < 2; ++times) end.all_reduce_sum(*rank.sums, std::span(&apart, 1));
      std::vector<float> read(4);
      rank.device->copy_bytes(*rank.sums, read.data(), rank.sum.view().data(), 16);
      EXPECT_TRUE(end.wait_idle(*rank.sums).ok());
      EXPECT_EQ(read, (std::vector<float>{11, 22, 33, 44}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (EmulatedRank& rank : ranks) EXPECT_TRUE(rank.work->wait_idle().ok());
}

TEST(DeviceCollectiveFactory, RefusesWhatCannotSum) {
  const DeviceId cpu{DeviceKind::kCpu, 0}, emulated{DeviceKind::kEmulated, 0};
  const DeviceId cuda{DeviceKind::kCuda, 1};
  const DeviceId mixed[] = {cpu, emulated}, twice[] = {cuda, cuda}, cpus[] = {cpu, cpu};
  EXPECT_THAT(make_device_collectives(mixed, {}).status().message(),
              AllOf(HasSubstr("several kinds"), HasSubstr("cpu:0, emulated:0")));
  EXPECT_THAT(make_device_collectives(twice, {}).status().message(),
              AllOf(HasSubstr("each GPU once"), HasSubstr("cuda:1, cuda:1")));
  EXPECT_EQ(make_device_collectives(cpus, {}).value().size(), 2u);
}

// One line, whatever is missing here: plug-in, driver, NCCL or GPUs.
TEST(DeviceCollectiveFactory, CudaWithoutWhatItNeedsIsOneLine) {
  const DeviceId cudas[] = {{DeviceKind::kCuda, 76}, {DeviceKind::kCuda, 77}};
  const auto group = make_device_collectives(cudas, {});
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().code(), StatusCode::kNotFound) << group.status().message();
  EXPECT_EQ(group.status().message().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace percheron

#include "kernels/device_groups.h"

#include <atomic>
#include <future>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/immediate_stream.h"

namespace percheron {
namespace {

using testing::HasSubstr;
using Joined = Result<std::unique_ptr<DeviceCollective>>;

const std::vector<DeviceId> kDevices = {
    {DeviceKind::kCpu, 0}, {DeviceKind::kCpu, 1}, {DeviceKind::kCpu, 2}};

Result<DeviceCollectives> connect(std::span<const DeviceId> devices) {
  return make_device_collectives(devices, {});
}

/// Joins on a thread of its own.
std::future<Joined> join(DeviceGroups& groups, int64_t group, std::vector<int> members, int self) {
  return std::async(std::launch::async,
                    [&groups, group, members, self] { return groups.join(group, members, self); });
}

void expect_sum(DeviceCollective& first, DeviceCollective& second) {
  std::vector<float> values[] = {{1, 2}, {10, 20}};
  const auto sum = [&values](DeviceCollective& end, size_t index) {
    ImmediateStream stream;
    end.all_reduce_sum(stream, TensorView(values[index].data(), DType::kF32, {2}));
    EXPECT_TRUE(end.wait_idle(stream).ok());
  };
  const auto other = std::async(std::launch::async, [&] { sum(second, 1); });
  sum(first, 0);
  other.wait();
  EXPECT_EQ(values[0], (std::vector<float>{11, 22}));
  EXPECT_EQ(values[1], values[0]);
}

TEST(DeviceGroups, TheLastMemberConnectsTheDevicesOfAllInTheirOrder) {
  std::vector<DeviceId> connected;
  DeviceGroups groups(
      kDevices,
      [&](std::span<const DeviceId> devices) {
        connected.assign(devices.begin(), devices.end());
        return connect(devices);
      },
      60);
  auto second = join(groups, 3, {0, 2}, 2);
  const Joined first = groups.join(3, std::vector<int>{0, 2}, 0);
  const Joined other = second.get();
  ASSERT_TRUE(first.ok() && other.ok());
  EXPECT_EQ(connected, (std::vector<DeviceId>{kDevices[0], kDevices[2]}));
  EXPECT_EQ((*first)->rank(), 0);
  EXPECT_EQ((*other)->rank(), 1);
  expect_sum(**first, **other);
}

TEST(DeviceGroups, AGroupThatWasFormedBeforeIsThereAtOnce) {
  int connections = 0;
  DeviceGroups groups(
      kDevices,
      [&](std::span<const DeviceId> devices) {
        ++connections;
        return connect(devices);
      },
      60);
  const std::vector<int> members = {0, 1};
  ASSERT_TRUE(groups.form(0, members).ok());
  const Joined first = groups.join(0, members, 0);
  const Joined second = groups.join(0, members, 1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(connections, 1);
  expect_sum(**first, **second);
}

TEST(DeviceGroups, ThoseWhoAreLeftFormAnotherGroupAfterOneIsGivenUp) {
  DeviceGroups groups(kDevices, connect, 60);
  auto waits = join(groups, 0, {0, 1, 2}, 0);
  groups.give_up(0);
  EXPECT_EQ(waits.get().status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(groups.join(0, std::vector<int>{0, 1, 2}, 1).status().message(),
              HasSubstr("group 0 of devices was given up"));
  auto second = join(groups, 1, {0, 1}, 1);
  const Joined first = groups.join(1, std::vector<int>{0, 1}, 0);
  const Joined other = second.get();
  ASSERT_TRUE(first.ok() && other.ok());
  expect_sum(**first, **other);
}

TEST(DeviceGroups, WhoWaitsInVainSaysHowManyCame) {
  DeviceGroups groups(kDevices, connect, 0.02);
  const Joined joined = groups.join(5, std::vector<int>{0, 1, 2}, 1);
  EXPECT_EQ(joined.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(joined.status().message(), HasSubstr("only 1 of 3 members came to group 5"));
  EXPECT_FALSE(groups.join(5, std::vector<int>{0, 1, 2}, 0).ok()) << "and who comes later, too";
}

TEST(DeviceGroups, AnErrorOfTheConnectionIsToldToAll) {
  DeviceGroups groups(
      kDevices, [](std::span<const DeviceId>) { return unavailable("NCCL does not connect"); }, 60);
  auto second = join(groups, 0, {0, 1}, 1);
  EXPECT_EQ(groups.join(0, std::vector<int>{0, 1}, 0).status().message(), "NCCL does not connect");
  EXPECT_EQ(second.get().status().message(), "NCCL does not connect");
  EXPECT_EQ(groups.form(1, std::vector<int>{0, 1}).message(), "NCCL does not connect");
}

}  // namespace
}  // namespace percheron

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/device_collective.h"

namespace percheron {

/// Forms groups of devices whose members change over a run, all in this process: what
/// CollectiveFactory is for host memory. Each change is a new group, by a number that grows.
/// Members of several processes would need the group's id (NCCL's ncclUniqueId) from the first of
/// them, by a RendezvousStore, and connect one rank each. Thread-safe.
class DeviceGroups {
 public:
  /// As make_device_collectives(), for the devices of a group's members.
  using Connect = std::function<Result<DeviceCollectives>(std::span<const DeviceId>)>;

  /// Member m is on devices[m].
  DeviceGroups(std::vector<DeviceId> devices, Connect connect, double join_seconds)
      : devices_(std::move(devices)), connect_(std::move(connect)), limit_(join_seconds) {}

  /// Connects a group before its members come. Errors as `connect`.
  Status form(int64_t group, std::span<const int> members);
  /// Waits until all `members`, which each of them names in the same order, have come to `group`;
  /// the last one connects them. Ranks follow that order; `self` is the caller. kUnavailable when
  /// not all came in time or the group was given up; errors of `connect` are told to all.
  Result<std::unique_ptr<DeviceCollective>> join(int64_t group, std::span<const int> members,
                                                 int self);
  /// `group` and those before it are formed no more; who waits for one is told. Any thread; never
  /// waits.
  void give_up(int64_t group);

 private:
  struct Meeting {
    std::vector<int> members;
    size_t arrived = 0, left = 0;
    bool connected = false;  // or failed to
    Status status;
    DeviceCollectives ranks;
  };
  using MeetingPtr = std::shared_ptr<Meeting>;

  Result<DeviceCollectives> connect(std::span<const int> members) const;
  MeetingPtr meet(int64_t group, std::span<const int> members);

  const std::vector<DeviceId> devices_;
  const Connect connect_;
  const std::chrono::duration<double> limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t given_up_ = -1;  // this group and every earlier one
  std::map<int64_t, MeetingPtr> meetings_;
};

}  // namespace percheron

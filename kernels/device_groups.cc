#include "kernels/device_groups.h"

#include <algorithm>
#include <string>
#include <utility>

namespace percheron {
namespace {

Status overtaken(int64_t group) {
  return unavailable("group " + std::to_string(group) +
                     " of devices was given up: its members have changed");
}

}  // namespace

Result<DeviceCollectives> DeviceGroups::connect(std::span<const int> members) const {
  std::vector<DeviceId> devices;
  for (const int member : members) devices.push_back(devices_.at(static_cast<size_t>(member)));
  return connect_(devices);
}

DeviceGroups::MeetingPtr DeviceGroups::meet(int64_t group, std::span<const int> members) {
  MeetingPtr& meeting = meetings_[group];
  if (!meeting) {
    meeting = std::make_shared<Meeting>();
    meeting->members.assign(members.begin(), members.end());
  }
  PERCHERON_CHECK(
      std::equal(members.begin(), members.end(), meeting->members.begin(), meeting->members.end()),
      "members of one group name the same members");
  return meeting;
}

Status DeviceGroups::form(int64_t group, std::span<const int> members) {
  PERCHERON_ASSIGN_OR_RETURN(DeviceCollectives ranks, connect(members));
  const std::lock_guard lock(mutex_);
  const MeetingPtr meeting = meet(group, members);
  meeting->ranks = std::move(ranks);
  meeting->connected = true;
  return ok_status();
}

Result<std::unique_ptr<DeviceCollective>> DeviceGroups::join(int64_t group,
                                                             std::span<const int> members,
                                                             int self) {
  const auto rank = std::find(members.begin(), members.end(), self);
  PERCHERON_CHECK(rank != members.end(), "only a member joins");
  std::unique_lock lock(mutex_);
  if (group <= given_up_) return overtaken(group);
  const MeetingPtr meeting = meet(group, members);
  const auto given_up = [&] { return group <= given_up_; };
  if (++meeting->arrived == members.size() && !meeting->connected) {
    lock.unlock();  // Connecting may take seconds.
    Result<DeviceCollectives> ranks = connect(members);
    lock.lock();
    meeting->status = ranks.status();
    if (ranks.ok()) meeting->ranks = std::move(*ranks);
    meeting->connected = true;
    changed_.notify_all();
  }
  changed_.wait_for(lock, limit_, [&] { return meeting->connected || given_up(); });
  if (++meeting->left == members.size()) meetings_.erase(group);
  if (given_up()) return overtaken(group);
  if (!meeting->connected) {
    given_up_ = std::max(given_up_, group);  // Who comes later must not find the group whole.
    changed_.notify_all();
    return unavailable("only " + std::to_string(meeting->arrived) + " of " +
                       std::to_string(members.size()) + " members came to group " +
                       std::to_string(group) + " of devices in time");
  }
  if (!meeting->status.ok()) return meeting->status;
  return std::move(meeting->ranks[static_cast<size_t>(rank - members.begin())]);
}

void DeviceGroups::give_up(int64_t group) {
  std::vector<MeetingPtr> dropped;  // Their ends may take time to go: without the lock.
  const std::lock_guard lock(mutex_);
  given_up_ = std::max(given_up_, group);
  while (!meetings_.empty() && meetings_.begin()->first <= given_up_) {
    dropped.push_back(std::move(meetings_.begin()->second));
    meetings_.erase(meetings_.begin());
  }
  changed_.notify_all();
}

}  // namespace percheron

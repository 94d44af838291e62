#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kernels/collective.h"

namespace percheron {
namespace {

class LocalCollectiveFactory final : public CollectiveFactory {
 public:
  explicit LocalCollectiveFactory(double timeout_seconds) : timeout_(timeout_seconds) {}

  Result<std::unique_ptr<Collective>> join(int64_t membership, std::span<const int> members,
                                           int self) override {
    const auto rank = std::find(members.begin(), members.end(), self);
    PERCHERON_CHECK(rank != members.end(), "only a member joins");
    std::unique_lock lock(mutex_);
    if (membership <= abandoned_) return overtaken(membership);
    Meeting& meeting = meet(membership, members);
    PERCHERON_CHECK(meeting.arrived.insert(self).second, "a member joins once");
    changed_.notify_all();
    changed_.wait_for(lock, timeout_,
                      [&] { return membership <= abandoned_ || meeting.complete(); });
    Result<std::unique_ptr<Collective>> joined =
        meeting.complete() ? std::move(meeting.ranks[static_cast<size_t>(rank - members.begin())])
        : membership <= abandoned_
            ? Result<std::unique_ptr<Collective>>(overtaken(membership))
            : unavailable("only " + std::to_string(meeting.arrived.size()) + " of " +
                          std::to_string(members.size()) + " members came to group " +
                          std::to_string(membership) + " in time");
    // Who comes after one that has given up must not find the group whole.
    if (!joined.ok()) abandoned_ = std::max(abandoned_, membership);
    if (++meeting.left == members.size() || !joined.ok()) forget(membership, meeting);
    return joined;
  }

  void abandon(int64_t membership) override {
    const std::lock_guard lock(mutex_);
    abandoned_ = std::max(abandoned_, membership);
    changed_.notify_all();
  }

 private:
  // Where the members of one membership wait for each other.
  struct Meeting {
    std::vector<int> members;
    std::vector<std::unique_ptr<Collective>> ranks;
    std::set<int> arrived;
    size_t left = 0;  // that went on, with the group or without

    bool complete() const { return arrived.size() == members.size(); }
  };

  static Status overtaken(int64_t membership) {
    return unavailable("group " + std::to_string(membership) +
                       " was given up: its members have changed");
  }

  Meeting& meet(int64_t membership, std::span<const int> members) {
    Meeting& meeting = meetings_[membership];
    if (meeting.members.empty()) {
      meeting.members.assign(members.begin(), members.end());
      meeting.ranks = make_local_collectives(static_cast<int>(members.size()));
    }
    PERCHERON_CHECK(
        std::equal(members.begin(), members.end(), meeting.members.begin(), meeting.members.end()),
        "members of one group name the same members");
    return meeting;
  }

  // A meeting goes when nobody waits in it any more.
  void forget(int64_t membership, const Meeting& meeting) {
    changed_.notify_all();
    if (meeting.left == meeting.arrived.size()) meetings_.erase(membership);
  }

  const std::chrono::duration<double> timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t abandoned_ = -1;  // this and every earlier membership
  std::map<int64_t, Meeting> meetings_;
};

}  // namespace

std::unique_ptr<CollectiveFactory> make_local_collective_factory(double timeout_seconds) {
  return std::make_unique<LocalCollectiveFactory>(timeout_seconds);
}

}  // namespace percheron

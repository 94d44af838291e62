#include "actors/policy/join_round.h"

#include <optional>
#include <utility>

#include "base/check.h"

namespace percheron {

JoinRound::JoinRound(int64_t step, std::set<int> newcomers, std::set<int> members)
    : step_(step),
      newcomers_(std::move(newcomers)),
      members_(std::move(members)),
      missing_(newcomers_) {
  missing_.insert(members_.begin(), members_.end());
}

bool JoinRound::restored(int trainer, uint32_t checksum) {
  if (missing_.erase(trainer) == 0) return false;
  checksums_[trainer] = checksum;
  return true;
}

void JoinRound::left(int trainer) {
  newcomers_.erase(trainer);
  members_.erase(trainer);
  missing_.erase(trainer);
  checksums_.erase(trainer);
}

JoinRound::Verdict JoinRound::verdict() const {
  PERCHERON_CHECK(missing_.empty(), "the verdict waits for everybody");
  Verdict verdict;
  std::optional<uint32_t> expected;
  for (int member : members_) {
    if (expected && *expected != checksums_.at(member)) verdict.members_differ = true;
    expected = checksums_.at(member);
  }
  for (int newcomer : newcomers_) {
    if (!expected) expected = checksums_.at(newcomer);
    const bool equal = checksums_.at(newcomer) == *expected;
    (equal ? verdict.admitted : verdict.refused).push_back(newcomer);
  }
  return verdict;
}

}  // namespace percheron

#include "actors/trainer_group.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace percheron {
namespace {

Status overtaken() { return unavailable("the trainers that reduce together have changed"); }

}  // namespace

void TrainerGroup::leave_for(int64_t membership) {
  std::shared_ptr<Collective> left;
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::max(wanted_, membership);
    if (joined_ < wanted_) left = collective_;
  }
  if (left) left->abort();
  factory_.abandon(membership - 1);
}

Status TrainerGroup::join(int64_t membership, std::span<const int> members) {
  {
    const std::lock_guard lock(mutex_);
    if (membership < wanted_) return overtaken();
    collective_.reset();
  }
  PERCHERON_ASSIGN_OR_RETURN(std::shared_ptr<Collective> collective,
                             factory_.join(membership, members, self_));
  const std::lock_guard lock(mutex_);
  if (membership < wanted_) return overtaken();  // The others see that it left.
  collective_ = std::move(collective);
  joined_ = membership;
  return ok_status();
}

Status TrainerGroup::all_reduce_sum(int64_t membership, std::span<float> floats,
                                    std::span<double> doubles) {
  std::shared_ptr<Collective> collective;
  {
    const std::lock_guard lock(mutex_);
    if (membership < wanted_ || membership != joined_ || !collective_) return overtaken();
    collective = collective_;
  }
  PERCHERON_RETURN_IF_ERROR(collective->all_reduce_sum(floats));
  return collective->all_reduce_sum(doubles);
}

void TrainerGroup::close() {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  leave_for(kLast);
}

}  // namespace percheron

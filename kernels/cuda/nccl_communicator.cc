#include "kernels/cuda/nccl_communicator.h"

#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

namespace percheron::cuda {
namespace {

/// Between two looks at what is waited for: less than an exchange of a layer takes.
constexpr std::chrono::microseconds kPollInterval(20);

}  // namespace

NcclCommunicator::NcclCommunicator(NcclCalls& calls, const Clock& clock, const NcclMember& member,
                                   double timeout_seconds)
    : calls_(calls), clock_(clock), member_(member), timeout_seconds_(timeout_seconds) {}

Status NcclCommunicator::begin() {
  const std::lock_guard lock(mutex_);
  return check(
      calls_.comm_init_rank_config(&comm_, member_.device, member_.size, member_.id, member_.rank),
      "ncclCommInitRankConfig");
}

Status NcclCommunicator::join() { return settle("ncclCommInitRankConfig"); }

Status NcclCommunicator::all_reduce_sum(void* stream, std::span<const ReducedTensor> tensors) {
  const Status status = enqueue(stream, tensors);
  if (!status.ok()) return give_up(status);
  // A communicator takes the next call when it is done with this one; its kernels run on.
  return settle("ncclAllReduce");
}

Status NcclCommunicator::enqueue(void* stream, std::span<const ReducedTensor> tensors) {
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) return unavailable(aborted_);
  PERCHERON_RETURN_IF_ERROR(check(calls_.group_start(), "ncclGroupStart"));
  Status status;
  for (const ReducedTensor& tensor : tensors) {
    if (tensor.x.elements() == 0) continue;
    status = check(calls_.all_reduce(tensor.x.data(), tensor.sum.data(),
                                     static_cast<size_t>(tensor.x.elements()), comm_, stream),
                   "ncclAllReduce");
    if (!status.ok()) break;
  }
  // The group is the thread's: it ends whatever happened in it.
  const Status ended = check(calls_.group_end(), "ncclGroupEnd");
  return status.ok() ? ended : status;
}

Status NcclCommunicator::wait_idle(void* stream) {
  const int64_t begin = clock_.monotonic_ns();
  for (;;) {
    bool in_progress = false;
    const Status status = poll(&in_progress);
    if (!status.ok()) return give_up(status);
    const Result<StreamState> state = calls_.stream_state(stream);
    if (!state.ok()) return give_up(state.status());
    if (*state == StreamState::kIdle && !in_progress) return ok_status();
    const double seconds = static_cast<double>(clock_.monotonic_ns() - begin) * 1e-9;
    if (seconds > timeout_seconds_) return timed_out("an all-reduce");
    std::this_thread::sleep_for(kPollInterval);
  }
}

Status NcclCommunicator::settle(const char* call) {
  const int64_t begin = clock_.monotonic_ns();
  for (;;) {
    bool in_progress = false;
    const Status status = poll(&in_progress);
    if (!status.ok()) return give_up(status.with_context(call));
    if (!in_progress) return ok_status();
    const double seconds = static_cast<double>(clock_.monotonic_ns() - begin) * 1e-9;
    if (seconds > timeout_seconds_) return timed_out(call);
    std::this_thread::sleep_for(kPollInterval);
  }
}

Status NcclCommunicator::poll(bool* in_progress) {
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) return unavailable(aborted_);
  NcclCode error = NcclCode::kSuccess;
  PERCHERON_RETURN_IF_ERROR(
      check(calls_.comm_get_async_error(comm_, &error), "ncclCommGetAsyncError"));
  *in_progress = error == NcclCode::kInProgress;
  if (error == NcclCode::kSuccess || *in_progress) return ok_status();
  return unavailable(where() + ": ncclCommGetAsyncError tells of " +
                     calls_.error_text(error, comm_));
}

Status NcclCommunicator::check(NcclCode code, const char* call) {
  if (code == NcclCode::kSuccess || code == NcclCode::kInProgress) return ok_status();
  return internal_error(where() + ": " + call + ": " + calls_.error_text(code, comm_));
}

Status NcclCommunicator::timed_out(const char* what) {
  std::ostringstream text;
  text << where() << ": " << what << " was not done within " << timeout_seconds_
       << " s: another rank did not come to it";
  return give_up(unavailable(text.str()));
}

Status NcclCommunicator::give_up(Status why) {
  abort(why.message());
  return why;
}

void NcclCommunicator::abort(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) return;
  aborted_ = why.empty() ? "the group was aborted" : why;
  if (comm_ == nullptr) return;
  (void)calls_.comm_abort(std::exchange(comm_, nullptr));  // What it says can't be acted upon.
}

std::string NcclCommunicator::where() const {
  return "NCCL on " + to_string(member_.device) + " (rank " + std::to_string(member_.rank) +
         " of " + std::to_string(member_.size) + ")";
}

}  // namespace percheron::cuda

#include "kernels/cuda/emulator/block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "base/random.h"

namespace percheron::emulator {
namespace {

constexpr size_t kSharedAlignment = 128;
constexpr int kPoison = 0xff;  // NaN as float, bf16 and double, -1 as integer
constexpr int kWaitersShown = 4;

std::string text_of(Dim3 i) {
  return std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z);
}

std::string text_of(Place place) {
  return std::string(place.file) + ":" + std::to_string(place.line);
}

}  // namespace

constinit thread_local Thread* current_thread = nullptr;

Block::Block(const Launch& launch)
    : launch_(launch),
      count_(launch.block.x * launch.block.y * launch.block.z),
      threads_(count_),
      warps_((count_ + kWarpThreads - 1) / kWarpThreads),
      order_(count_) {}

std::string Block::run(Dim3 index, StackPool& stacks) {
  if (!stacks.prepare(count_)) return "the host has no memory for the threads' stacks";
  reset(index, stacks);
  while (alive_ > 0 && error_.empty()) {
    bool progress = false;
    for (size_t begin = 0; begin < count_ && error_.empty();) {
      size_t end = begin + 1;
      const unsigned warp = order_[begin] / kWarpThreads;
      while (end < count_ && order_[end] / kWarpThreads == warp) ++end;
      const bool ran = run_ready(begin, end);
      progress |= ran;
      if (!ran || launch_.schedule == Schedule::kRoundRobin) begin = end;
    }
    if (!progress && alive_ > 0 && error_.empty()) error_ = deadlock();
  }
  current_thread = nullptr;
  for (Thread& thread : threads_) thread.forget();
  if (!error_.empty()) stacks.clear_frames();
  shared_.clear();
  return std::exchange(error_, "");
}

void Block::reset(Dim3 index, StackPool& stacks) {
  index_ = index;
  alive_ = count_;
  at_barrier_ = 0;
  votes_ = 0;
  const Dim3 size = launch_.block;
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    thread.block = this;
    thread.flat = i;
    thread.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    thread.state = Thread::State::kReady;
    thread.copies.clear();
    thread.start(stacks.stack(i), &Block::run_thread, &thread);
  }
  for (unsigned w = 0; w < warps_.size(); ++w) {
    const unsigned lanes = std::min(kWarpThreads, count_ - w * kWarpThreads);
    warps_[w].alive = lanes == kWarpThreads ? ~0u : (1u << lanes) - 1;
    warps_[w].meetings.clear();
  }
  order_threads();
  dynamic_shared_ = launch_.dynamic_shared_bytes == 0
                        ? nullptr
                        : add_shared(nullptr, launch_.dynamic_shared_bytes);
}

void Block::order_threads() {
  std::iota(order_.begin(), order_.end(), 0u);
  if (launch_.schedule == Schedule::kReverse) std::reverse(order_.begin(), order_.end());
  if (launch_.schedule != Schedule::kShuffled) return;
  Random random = Random::keyed(launch_.seed, "threads", index_.x, index_.y);
  std::vector<unsigned> warps(warps_.size());
  std::iota(warps.begin(), warps.end(), 0u);
  shuffle(std::span(warps), random);
  size_t next = 0;
  for (const unsigned warp : warps) {
    const unsigned begin = warp * kWarpThreads, end = std::min(count_, begin + kWarpThreads);
    const std::span<unsigned> lanes(order_.data() + next, end - begin);
    std::iota(lanes.begin(), lanes.end(), begin);
    shuffle(lanes, random);
    next += end - begin;
  }
}

bool Block::run_ready(size_t begin, size_t end) {
  bool ran = false;
  for (size_t i = begin; i < end && error_.empty(); ++i) {
    Thread& thread = threads_[order_[i]];
    if (thread.state != Thread::State::kReady) continue;
    ran = true;
    current_thread = &thread;
    thread.resume();
  }
  return ran;
}

void Block::run_thread(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  Block& block = *thread.block;
  acquire(block.launch_.begin_order);
  (*block.launch_.kernel)();
  if (thread.copies.under_way()) block.fail("cp.async", "a thread ended with copies under way");
  release(block.launch_.end_order);
  const IgnoreAccesses ignore;
  block.end_thread(thread);
}

void Block::end_thread(Thread& thread) {
  thread.state = Thread::State::kDone;
  --alive_;
  Warp& warp = warps_[thread.warp()];
  warp.alive &= ~(1u << thread.lane());
  // Those who waited for this thread too, wait for it no more.
  for (const auto& meeting : warp.meetings) {
    if (meeting->arrived != 0 && meeting->arrived == (meeting->mask & warp.alive)) {
      complete(thread.warp(), *meeting);
    }
  }
  if (at_barrier_ > 0 && at_barrier_ == alive_) open_barrier();
}

void Block::open_barrier() {
  at_barrier_ = 0;
  votes_result_ = std::exchange(votes_, 0);
  for (Thread& thread : threads_) {
    if (thread.state == Thread::State::kAtBarrier) thread.state = Thread::State::kReady;
  }
}

int Block::barrier(const char* operation, Place place, int vote) {
  release(&barrier_order_);
  leave(arrive_at_barrier(operation, place, vote));
  acquire(&barrier_order_);
  const IgnoreAccesses ignore;
  return votes_result_;
}

Block::Next Block::arrive_at_barrier(const char* operation, Place place, int vote) {
  const IgnoreAccesses ignore;
  if (at_barrier_ == 0) {
    barrier_operation_ = operation;
    barrier_place_ = place;
  } else if (barrier_place_.line != place.line ||
             std::strcmp(barrier_place_.file, place.file) != 0) {
    return failed("divergent barriers: " + std::string(operation) + " at " + text_of(place) +
                  " while others wait in " + barrier_operation_ + " at " + text_of(barrier_place_));
  }
  votes_ += vote;
  if (++at_barrier_ == alive_) {
    open_barrier();
    return Next::kGoOn;
  }
  this_thread().state = Thread::State::kAtBarrier;
  this_thread().waits_in = operation;
  return Next::kWait;
}

Block::Meeting& Block::meeting_of(Warp& warp, unsigned mask) {
  for (const auto& meeting : warp.meetings) {
    if (meeting->mask == mask) return *meeting;
  }
  warp.meetings.push_back(std::make_unique<Meeting>());
  warp.meetings.back()->mask = mask;
  return *warp.meetings.back();
}

void Block::complete(unsigned warp, Meeting& meeting) {
  meeting.deposits[meeting.generation & 1].lanes = meeting.arrived;
  meeting.arrived = 0;
  ++meeting.generation;
  for (unsigned lane = 0; lane < kWarpThreads; ++lane) {
    const unsigned i = warp * kWarpThreads + lane;
    if (i >= count_ || (meeting.mask >> lane & 1) == 0) continue;
    if (threads_[i].state == Thread::State::kInWarp) threads_[i].state = Thread::State::kReady;
  }
}

const Deposits& Block::exchange(unsigned mask, const char* operation, const void* value,
                                size_t bytes, Memory memory) {
  Meeting* meeting = nullptr;
  const Deposits* deposits = nullptr;
  leave(find_meeting(mask, operation, bytes, meeting));
  if (memory == Memory::kOrdersMemory) release(meeting);
  leave(arrive_at(*meeting, value, deposits));
  if (memory == Memory::kOrdersMemory) acquire(meeting);
  return *deposits;
}

Block::Next Block::find_meeting(unsigned mask, const char* operation, size_t bytes,
                                Meeting*& meeting) {
  const IgnoreAccesses ignore;
  const Thread& thread = this_thread();
  if ((mask >> thread.lane() & 1) == 0) {
    return failed(std::string(operation) + ": the calling lane is not in the mask");
  }
  meeting = &meeting_of(warps_[thread.warp()], mask);
  if (meeting->arrived == 0) {
    meeting->operation = operation;
    meeting->bytes = bytes;
  } else if (std::strcmp(meeting->operation, operation) != 0 || meeting->bytes != bytes) {
    return failed("divergent warp: " + std::string(operation) + " while another lane is in " +
                  meeting->operation);
  }
  return Next::kGoOn;
}

Block::Next Block::arrive_at(Meeting& meeting, const void* value, const Deposits*& deposits) {
  const IgnoreAccesses ignore;
  Thread& thread = this_thread();
  Deposits& mine = meeting.deposits[meeting.generation & 1];
  deposits = &mine;
  if (meeting.bytes > 0) std::memcpy(mine.bytes[thread.lane()], value, meeting.bytes);
  meeting.arrived |= 1u << thread.lane();
  if (meeting.arrived == (meeting.mask & warps_[thread.warp()].alive)) {
    complete(thread.warp(), meeting);
    return Next::kGoOn;
  }
  thread.state = Thread::State::kInWarp;
  thread.waits_in = meeting.operation;
  return Next::kWait;
}

void* Block::add_shared(const void* key, size_t bytes) {
  const IgnoreAccesses ignore;
  void* memory = nullptr;
  // Exactly the bytes, so that AddressSanitizer sees whoever goes past them.
  if (posix_memalign(&memory, kSharedAlignment, bytes) != 0) std::abort();
  std::memset(memory, kPoison, bytes);
  shared_.push_back({key, {static_cast<char*>(memory), &std::free}});
  return memory;
}

void* Block::shared(const void* key, size_t bytes) {
  {
    const IgnoreAccesses ignore;
    for (const Shared& object : shared_) {
      if (object.key == key) return object.memory.get();
    }
  }
  return add_shared(key, bytes);
}

unsigned Block::alive_lanes() const {
  const IgnoreAccesses ignore;
  return warps_[this_thread().warp()].alive;
}

Block::Next Block::failed(const std::string& what) {
  const IgnoreAccesses ignore;
  const Thread& thread = this_thread();
  error_ = what + " [block " + text_of(index_) + ", thread " + text_of(thread.index) + "]";
  return Next::kEnd;
}

void Block::fail(const char* operation, const char* what) {
  const Next next = failed(std::string(operation) + ": " + what);
  leave(next);
  std::abort();  // leave() does not return.
}

void Block::leave(Next next) {
  if (next == Next::kGoOn) return;
  release(launch_.end_order);  // It may be the last of this thread, if the block fails.
  if (next == Next::kWait) this_thread().suspend();
  if (next == Next::kEnd) this_thread().finish();
}

std::string Block::deadlock() const {
  std::string text = "deadlock in block " + text_of(index_) + ":";
  int shown = 0;
  for (const Thread& thread : threads_) {
    if (thread.state == Thread::State::kDone || ++shown > kWaitersShown) continue;
    text += " thread " + text_of(thread.index) + " waits in " + thread.waits_in + ";";
  }
  return text;
}

}  // namespace percheron::emulator

#include "kernels/cuda/emulator/async_copy.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cuda/emulator/block.h"

namespace percheron::emulator {

void AsyncCopies::add(void* destination, const void* source, size_t bytes) {
  const auto addresses =
      reinterpret_cast<uintptr_t>(destination) | reinterpret_cast<uintptr_t>(source);
  if (addresses % bytes != 0) this_thread().block->fail("cp.async", "an address is not aligned");
  // A bad source is the fault of this line, not of the wait.
  const volatile char* first = static_cast<const char*>(source);
  (void)first[0];
  (void)first[bytes - 1];
  std::memset(destination, 0xff, bytes);
  const IgnoreAccesses ignore;
  open_.push_back({destination, source, bytes});
}

void AsyncCopies::commit() {
  const IgnoreAccesses ignore;
  groups_.push_back(std::exchange(open_, {}));
}

void AsyncCopies::wait(size_t groups_left) {
  Group due;
  {
    const IgnoreAccesses ignore;
    while (groups_.size() > groups_left) {
      due.insert(due.end(), groups_.front().begin(), groups_.front().end());
      groups_.erase(groups_.begin());
    }
  }
  for (const Copy& copy : due) std::memcpy(copy.destination, copy.source, copy.bytes);
}

void AsyncCopies::clear() {
  open_.clear();
  groups_.clear();
}

}  // namespace percheron::emulator

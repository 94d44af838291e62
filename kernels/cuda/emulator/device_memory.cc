#include "kernels/cuda/emulator/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/check.h"

namespace percheron::emulator {
namespace {

constexpr size_t kAlignmentBytes = 64;
constexpr size_t kPageBytes = 4096;
constexpr size_t kRegionBytes = size_t{1} << 40;  // address space only
constexpr int kPoison = 0xff;                     // NaN as any float

}  // namespace

DeviceMemory::~DeviceMemory() {
  if (region_ != nullptr) munmap(region_, kRegionBytes);
}

// The next unused pages of the region, open like all others.
Result<char*> DeviceMemory::map_pages(size_t bytes) {
  if (region_ == nullptr) {
    void* data =
        mmap(nullptr, kRegionBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return resource_exhausted("no address space for guarded memory");
    region_ = static_cast<char*>(data);
  }
  const size_t size = (std::max<size_t>(bytes, 1) + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (size > kRegionBytes - region_used_) {
    return resource_exhausted("guarded memory has used up its address space");
  }
  char* data = region_ + region_used_;
  region_used_ += size;
  if (mprotect(data, size, PROT_READ | PROT_WRITE) != 0) {
    return resource_exhausted("the host has no " + std::to_string(bytes) + " bytes of memory");
  }
  return data;
}

Result<void*> DeviceMemory::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > bytes_max_ - bytes_in_use_) {
    return resource_exhausted(std::to_string(bytes) + " bytes are wanted, " +
                              std::to_string(bytes_max_ - bytes_in_use_) + " of " +
                              std::to_string(bytes_max_) + " are free");
  }
  void* data = nullptr;
  if (guard_ == MemoryGuard::kGuarded) {
    PERCHERON_ASSIGN_OR_RETURN(data, map_pages(bytes));
  } else if (posix_memalign(&data, kAlignmentBytes, std::max<size_t>(bytes, 1)) != 0) {
    return resource_exhausted("the host has no " + std::to_string(bytes) + " bytes of memory");
  }
  std::memset(data, kPoison, bytes);
  if (guard_ == MemoryGuard::kGuarded && accesses_ == 0) protect(PROT_NONE);
  pieces_[static_cast<char*>(data)] = bytes;
  bytes_in_use_ += bytes;
  return data;
}

void DeviceMemory::release(void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  pieces_.erase(static_cast<char*>(data));
  bytes_in_use_ -= bytes;
  if (guard_ == MemoryGuard::kPlain) {
    std::free(data);
  } else {
    const size_t size = (std::max<size_t>(bytes, 1) + kPageBytes - 1) / kPageBytes * kPageBytes;
    (void)madvise(data, size, MADV_DONTNEED);  // Only the pages go: the addresses stay unused.
  }
}

bool DeviceMemory::contains(const void* data, size_t bytes) const {
  const char* begin = static_cast<const char*>(data);
  const std::lock_guard lock(mutex_);
  auto piece = pieces_.upper_bound(begin);
  if (piece == pieces_.begin()) return false;
  --piece;
  return begin + bytes <= piece->first + piece->second;
}

uint64_t DeviceMemory::bytes_free() const {
  const std::lock_guard lock(mutex_);
  return bytes_max_ - bytes_in_use_;
}

void DeviceMemory::open() {
  if (guard_ == MemoryGuard::kPlain) return;
  const std::lock_guard lock(mutex_);
  if (accesses_++ == 0) protect(PROT_READ | PROT_WRITE);
}

void DeviceMemory::close() {
  if (guard_ == MemoryGuard::kPlain) return;
  const std::lock_guard lock(mutex_);
  if (--accesses_ == 0) protect(PROT_NONE);
}

void DeviceMemory::protect(int protection) {
  if (region_used_ == 0) return;
  PERCHERON_CHECK(mprotect(region_, region_used_, protection) == 0,
                  "guarded memory can't be opened or closed");
}

}  // namespace percheron::emulator

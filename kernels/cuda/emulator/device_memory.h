#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/status.h"

namespace percheron::emulator {

/// kPlain: each piece is an allocation of exactly its bytes, so that AddressSanitizer sees whoever
/// goes past it. kGuarded: pages that the process may touch only while an Access lives, so that
/// host code which reads or writes device memory itself ends by SIGSEGV, as on a GPU; addresses are
/// never given twice.
enum class MemoryGuard { kPlain, kGuarded };

/// The memory of an emulated device: NaN bytes at first. Any thread.
class DeviceMemory {
 public:
  /// `bytes_max`: what all pieces together may take.
  DeviceMemory(MemoryGuard guard, uint64_t bytes_max) : guard_(guard), bytes_max_(bytes_max) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// 64-byte aligned. kResourceExhausted says what is free.
  Result<void*> allocate(size_t bytes);
  void release(void* data, size_t bytes);
  /// Whether [data, data + bytes) lies within one piece.
  bool contains(const void* data, size_t bytes) const;
  uint64_t bytes_free() const;

  /// While it lives, guarded memory can be touched by this process: what a kernel, a product or a
  /// copy needs.
  class Access {
   public:
    explicit Access(DeviceMemory& memory) : memory_(memory) { memory_.open(); }
    ~Access() { memory_.close(); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    DeviceMemory& memory_;
  };

 private:
  Result<char*> map_pages(size_t bytes);
  void open();
  void close();
  void protect(int protection);

  const MemoryGuard guard_;
  const uint64_t bytes_max_;
  mutable std::mutex mutex_;
  std::map<const char*, size_t> pieces_;
  uint64_t bytes_in_use_ = 0;
  int accesses_ = 0;
  char* region_ = nullptr;  // kGuarded: address space that is reserved once
  size_t region_used_ = 0;
};

}  // namespace percheron::emulator

#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace percheron {

/// Bytes of this process's memory in RAM, by a name of /proc/self/status: "RssAnon:" for private
/// memory, "RssShmem:" for shared.
uint64_t memory_bytes(const char* name);

/// The most private memory that this process had while the object lived, above that at its start.
class PrivateMemoryWatch {
 public:
  PrivateMemoryWatch() : thread_([this] { watch(); }) {}
  ~PrivateMemoryWatch() { stop(); }
  uint64_t stop();

 private:
  void watch();

  const uint64_t begin_ = memory_bytes("RssAnon:");
  uint64_t most_ = begin_;
  std::atomic<bool> done_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace percheron

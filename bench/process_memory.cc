#include "bench/process_memory.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/file_system.h"

namespace percheron {

uint64_t memory_bytes(const char* name) {
  const std::string text = system_files().read_text("/proc/self/status").value();
  const size_t at = text.find(name);
  PERCHERON_CHECK(at != text.npos, "the system does not tell a process's memory");
  return std::strtoull(text.c_str() + at + std::strlen(name), nullptr, 10) << 10;
}

uint64_t PrivateMemoryWatch::stop() {
  done_ = true;
  if (thread_.joinable()) thread_.join();
  return most_ - begin_;
}

void PrivateMemoryWatch::watch() {
  while (!done_) {
    most_ = std::max(most_, memory_bytes("RssAnon:"));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace percheron

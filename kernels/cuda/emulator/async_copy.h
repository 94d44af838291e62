#pragma once

#include <cstddef>
#include <vector>

namespace percheron::emulator {

/// The cp.async copies of one thread. Each happens when it is waited for; until then its
/// destination is NaN bytes, so that whoever reads too early is found.
class AsyncCopies {
 public:
  void add(void* destination, const void* source, size_t bytes);
  /// Closes the group of the copies since the last one.
  void commit();
  /// Waits until at most `groups_left` groups are under way.
  void wait(size_t groups_left);
  bool under_way() const { return !open_.empty() || !groups_.empty(); }
  void clear();

 private:
  struct Copy {
    void* destination;
    const void* source;
    size_t bytes;
  };
  using Group = std::vector<Copy>;

  Group open_;
  std::vector<Group> groups_;
};

}  // namespace percheron::emulator

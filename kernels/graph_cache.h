#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/device.h"

namespace percheron {

/// Runs work that repeats as graphs, on devices that have them: the first time as it is, the second
/// time it is recorded and launched, from the third on only launched. Belongs to whoever owns the
/// memory, beside the arena's, that the work reads and writes; used by one thread.
class GraphCache {
 public:
  struct Counts {
    uint64_t recorded = 0, replayed = 0, direct = 0;
    uint64_t refused = 0;  // recordings that failed: that work runs directly from then on
  };

  /// Of the graphs those used least recently go, when there are more.
  explicit GraphCache(size_t graphs_max = kGraphsMax) : graphs_max_(graphs_max) {}

  /// Does what `work` puts into the context's stream, within a scope of the arena of its own.
  /// `key` holds whatever, beside the arena, decides what that is: shapes, addresses and numbers
  /// that are given to operations. `work` decides by nothing else, waits for nothing, copies
  /// nothing from or to the host, and leaves nothing to the host that is used after it.
  void run(Context& context, const std::vector<uint64_t>& key, const std::function<void()>& work);

  const Counts& counts() const { return counts_; }
  size_t graphs() const;

 private:
  struct Entry {
    std::vector<uint64_t> key;
    std::unique_ptr<Graph> graph;  // null until it is recorded
    bool refused = false;
    uint64_t last_use = 0;
  };

  static constexpr size_t kGraphsMax = 16;
  static constexpr size_t kKeysMax = 64;  // that are remembered without a graph

  /// The entry of `key`, or null; a new one is remembered for the next time.
  Entry* find(const std::vector<uint64_t>& key);
  void record(Context& context, Entry& entry, const std::function<void()>& work);
  void forget_oldest(bool with_graph, size_t count_max);

  size_t graphs_max_;
  std::vector<Entry> entries_;
  uint64_t uses_ = 0;
  uint64_t generation_ = 0;  // of the arena whose addresses the graphs hold
  bool refusal_told_ = false;
  Counts counts_;
};

}  // namespace percheron

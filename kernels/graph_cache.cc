#include "kernels/graph_cache.h"

#include <algorithm>
#include <string>

#include "base/log.h"

namespace percheron {

size_t GraphCache::graphs() const {
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(),
                                           [](const Entry& e) { return e.graph != nullptr; }));
}

void GraphCache::run(Context& context, const std::vector<uint64_t>& key,
                     const std::function<void()>& work) {
  const Arena::Scope scope(context.arena);
  if (!context.device.info().graphs) {
    ++counts_.direct;
    work();
    return;
  }
  if (context.arena.generation() != generation_) {
    // Scratch memory was got or freed: its addresses in the graphs may be anybody's by now.
    entries_.clear();
    generation_ = context.arena.generation();
  }
  std::vector<uint64_t> whole = key;
  whole.push_back(reinterpret_cast<uintptr_t>(context.arena.position()));
  whole.push_back(reinterpret_cast<uintptr_t>(&context.stream));
  Entry* const entry = find(whole);
  if (entry == nullptr || entry->refused) {
    ++counts_.direct;
    work();
  } else if (entry->graph != nullptr) {
    ++counts_.replayed;
    ++context.device.counters().graphs_launched;
    context.stream.launch(*entry->graph);
  } else {
    record(context, *entry, work);
  }
}

GraphCache::Entry* GraphCache::find(const std::vector<uint64_t>& key) {
  ++uses_;
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found != entries_.end()) {
    found->last_use = uses_;
    return &*found;
  }
  forget_oldest(false, kKeysMax - 1);
  entries_.push_back({.key = key, .graph = nullptr, .refused = false, .last_use = uses_});
  return nullptr;
}

void GraphCache::record(Context& context, Entry& entry, const std::function<void()>& work) {
  DeviceCounters& counters = context.device.counters();
  const uint64_t generation = context.arena.generation();
  Status status = context.stream.begin_recording();
  if (status.code() == StatusCode::kFailedPrecondition) {  // Nobody wants graphs.
    entry.refused = true;
    ++counts_.direct;
    return work();
  }
  if (status.ok()) {
    {
      const Arena::Scope scope(context.arena);
      work();
    }
    Result<std::unique_ptr<Graph>> graph = context.stream.end_recording();
    status = graph.status();
    if (status.ok() && context.arena.generation() != generation) {
      status = failed_precondition("scratch memory grew meanwhile");
    }
    if (status.ok()) {
      entry.graph = std::move(*graph);
      ++counts_.recorded;
      ++counters.graphs_recorded;
      ++counters.graphs_launched;
      context.stream.launch(*entry.graph);
      // After the launch: the vector moves.
      forget_oldest(true, graphs_max_);
      return;
    }
  }
  entry.refused = true;
  ++counts_.refused;
  ++counters.graphs_refused;
  if (!std::exchange(refusal_told_, true)) {
    log_warning("{}: a step could not be recorded as a graph and runs launch by launch: {}",
                to_string(context.device.info().id), status.message());
  }
  work();
}

void GraphCache::forget_oldest(bool with_graph, size_t count_max) {
  const auto counted = [with_graph](const Entry& entry) {
    return (entry.graph != nullptr) == with_graph;
  };
  while (true) {
    size_t count = 0;
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!counted(*entry)) continue;
      ++count;
      if (oldest == entries_.end() || entry->last_use < oldest->last_use) oldest = entry;
    }
    if (count <= count_max) return;
    entries_.erase(oldest);
  }
}

}  // namespace percheron

// Sums over the ranks of a group: threads of this process through shared memory (Local), and over
// TCP of the loopback interface (Gloo), as processes on one machine would. GB/s count each rank's
// values once.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <thread>

#include "kernels/collective.h"
#include "kernels/cpu/gloo_collective.h"

namespace percheron {
namespace {

using Group = std::vector<std::unique_ptr<Collective>>;

/// A directory for the group's addresses, gone at the end.
class Directory {
 public:
  ~Directory() {
    if (!system_files().remove_all(path_).ok()) std::abort();
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ = "/tmp/percheron_collective_bench." + std::to_string(getpid());
};

Group join_gloo(int size, const std::string& directory) {
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  Group group(members.size());
  std::vector<std::thread> threads;
  for (const int self : members) {
    threads.emplace_back([&, self] {
      const auto factory =
          make_gloo_collective_factory({}, make_directory_rendezvous(system_files(), directory));
      PERCHERON_CHECK(factory.ok(), factory.status().message());
      auto joined = (*factory)->join(1, members, self);
      PERCHERON_CHECK(joined.ok(), joined.status().message());
      group[static_cast<size_t>(self)] = std::move(*joined);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return group;
}

/// Measures rank 0 while the others keep reducing in threads of their own.
void measure(benchmark::State& state, Group group) {
  const auto count = static_cast<size_t>(state.range(1)) / sizeof(float);
  std::vector<std::thread> others;
  for (size_t rank = 1; rank < group.size(); ++rank) {
    others.emplace_back([&member = *group[rank], count] {
      std::vector<float> values(count);
      while (member.all_reduce_sum(std::span<float>(values)).ok()) {
      }
    });
  }
  std::vector<float> values(count);
  for (auto _ : state) {
    if (!group[0]->all_reduce_sum(std::span<float>(values)).ok()) {
      state.SkipWithError("a sum failed");
      break;
    }
  }
  group[0]->abort();
  for (std::thread& other : others) other.join();
  state.SetBytesProcessed(state.iterations() * state.range(1));
}

void local(benchmark::State& state) {
  measure(state, make_local_collectives(static_cast<int>(state.range(0))));
}
void gloo_tcp(benchmark::State& state) {
  const Directory directory;
  measure(state, join_gloo(static_cast<int>(state.range(0)), directory.path()));
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"ranks", "bytes"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t bytes : {8, 4 << 20, 64 << 20}) b->Args({ranks, bytes});
  }
}
BENCHMARK(local)->Name("Local")->Apply(sizes);
BENCHMARK(gloo_tcp)->Name("Gloo")->Apply(sizes);

}  // namespace
}  // namespace percheron

BENCHMARK_MAIN();

#pragma once

#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "kernels/collective.h"

namespace percheron {

/// What rank `rank` brings into a sum; the order of its terms shows in the sum's bits.
template <class T>
std::vector<T> terms_of(int rank, size_t count, uint64_t seed) {
  Random random(seed * 1000 + static_cast<uint64_t>(rank));
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(random.uniform() - 0.5);
  return values;
}

template <class T>
std::string hash_of(const std::vector<T>& values) {
  return content_hash(std::as_bytes(std::span<const T>(values)));
}

/// Runs `work(member)` on one thread per member of a group.
template <class F>
void on_all(std::vector<std::unique_ptr<Collective>>& group, F&& work) {
  std::vector<std::thread> threads;
  for (auto& member : group) threads.emplace_back([&work, &member] { work(*member); });
  for (std::thread& thread : threads) thread.join();
}

/// The sum of terms_of() all ranks as a group in one process makes it.
template <class T>
std::vector<T> sum_in_one_process(int size, size_t count, uint64_t seed) {
  auto group = make_local_collectives(size);
  std::vector<std::vector<T>> values(static_cast<size_t>(size));
  on_all(group, [&](Collective& member) {
    std::vector<T>& mine = values[static_cast<size_t>(member.rank())];
    mine = terms_of<T>(member.rank(), count, seed);
    const Status status = member.all_reduce_sum(std::span<T>(mine));
    PERCHERON_CHECK(status.ok(), status.message());
  });
  return values[0];
}

}  // namespace percheron

// A member of groups in a process of its own, driven by lines on standard input; each answers with
// one line, "ok ..." or "error CODE: MESSAGE".
//
//   collective_member DIRECTORY SELF OPERATION_LIMIT_MS
//     join MEMBERSHIP MEMBER...    ok RANK SIZE
//     f32|f64 COUNT SEED           ok HASH, of the sum of all ranks' terms
//     broadcast COUNT SEED         ok HASH, of rank 0's terms

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

#include "kernels/cpu/gloo_collective.h"
#include "tests/kernels/collective_values.h"

namespace percheron {
namespace {

class Member {
 public:
  Member(std::unique_ptr<CollectiveFactory> factory, int self)
      : factory_(std::move(factory)), self_(self) {}

  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "join") return join(words);
    size_t count = 0;
    uint64_t seed = 0;
    words >> count >> seed;
    if (verb == "f32") return sum<float>(count, seed);
    if (verb == "f64") return sum<double>(count, seed);
    if (verb != "broadcast") return "error: unknown word " + verb;
    auto values = terms_of<float>(collective_->rank(), count, seed);
    const Status status = collective_->broadcast(values);
    return status.ok() ? "ok " + hash_of(values) : error(status);
  }

 private:
  static std::string error(const Status& status) {
    return "error " + std::string(status_code_name(status.code())) + ": " + status.message();
  }

  std::string join(std::istringstream& words) {
    int64_t membership = 0;
    words >> membership;
    std::vector<int> members;
    for (int member = 0; words >> member;) members.push_back(member);
    collective_.reset();
    auto joined = factory_->join(membership, members, self_);
    if (!joined.ok()) return error(joined.status());
    collective_ = std::move(*joined);
    return "ok " + std::to_string(collective_->rank()) + " " + std::to_string(collective_->size());
  }

  template <class T>
  std::string sum(size_t count, uint64_t seed) {
    auto values = terms_of<T>(collective_->rank(), count, seed);
    const Status status = collective_->all_reduce_sum(std::span<T>(values));
    return status.ok() ? "ok " + hash_of(values) : error(status);
  }

  std::unique_ptr<CollectiveFactory> factory_;
  const int self_;
  std::unique_ptr<Collective> collective_;
};

}  // namespace
}  // namespace percheron

int main(int count, char** words) {
  if (count != 4) return 2;
  const percheron::GlooOptions options{.operation_limit =
                                           std::chrono::milliseconds(std::atoll(words[3]))};
  auto factory = percheron::make_gloo_collective_factory(
      options, percheron::make_directory_rendezvous(percheron::system_files(), words[1]));
  if (!factory.ok()) {
    std::cerr << factory.status().message() << '\n';
    return 1;
  }
  percheron::Member member(std::move(*factory), std::atoi(words[2]));
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << member.answer(line) << std::endl;
  }
  return 0;
}

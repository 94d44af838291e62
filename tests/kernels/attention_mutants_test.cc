// The tensor-core kernels of attention's gradients with bugs planted in them: what the masks and
// schedules of the tests must be able to find.

#include "base/random.h"
#include "gtest/gtest.h"
#include "kernels/cuda/emulator/device_memory.h"
#include "kernels/cuda/emulator/machine.h"
#include "kernels/cuda/emulator/work_queue.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/attention_reference.h"
#include "tests/test_seed.h"

#define PERCHERON_MUTANT(name)                                            \
  namespace percheron::cuda::name {                                       \
  void attention_bf16_backward(Queue& queue, const AttentionBackward& a); \
  }
#include "tests/kernels/attention_mutants.inc"
#undef PERCHERON_MUTANT

namespace percheron::kernel_test {
namespace {

using emulator::DeviceMemory;
using emulator::Machine;
using emulator::MemoryGuard;
using emulator::Schedule;
using emulator::Timeline;
using emulator::WorkQueue;

constexpr Schedule kSchedules[] = {Schedule::kForward, Schedule::kReverse, Schedule::kShuffled,
                                   Schedule::kRoundRobin};
constexpr int64_t kHeadDim = 64;
constexpr float kScale = 0.125f;
constexpr uint64_t kUsualSeed = 20250117;

using Kernel = void (*)(cuda::Queue&, const cuda::AttentionBackward&);
struct Mutant {
  std::string name;
  Kernel kernel;
};

std::vector<Mutant> mutants() {
  return {
#define PERCHERON_MUTANT(name) {#name, cuda::name::attention_bf16_backward},
#include "tests/kernels/attention_mutants.inc"
#undef PERCHERON_MUTANT
  };
}

using Bf16 = std::vector<uint16_t>;

std::vector<double> doubles(const Bf16& x) {
  std::vector<double> values(x.size());
  std::ranges::transform(x, values.begin(), float_from_bf16);
  return values;
}
std::vector<double> doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// Few rows see any keys, so that their tiles lie in several batches with none in between.
Mask late_rows() {
  Mask mask{"late rows", 40, std::vector<Interval>(600, Interval{0, 0, 0, 0})};
  for (const int64_t row : {5, 100, 470, 471, 550}) {
    mask.rows[static_cast<size_t>(row)] = {0, row % 40 + 1, 0, 0};
  }
  return mask;
}

/// A mask with random operands, and what its gradients should be.
class Problem {
 public:
  Problem(Case c, Random& random) : case_(std::move(c)) {
    const size_t rows = case_.mask.rows.size(), keys = static_cast<size_t>(case_.mask.keys);
    const auto heads = static_cast<size_t>(case_.heads);
    const auto kv_heads = static_cast<size_t>(case_.kv_heads);
    for (Bf16* x : {&q_, &dout_}) *x = normal(rows * heads * kHeadDim, random);
    for (Bf16* x : {&k_, &v_}) *x = normal(keys * kv_heads * kHeadDim, random);
    finish();
  }
  /// The last `rows` rows and keys of a problem with as many of them, under a mask of their own.
  Problem(const Problem& all, Mask mask) : case_(all.case_) {
    const size_t rows = mask.rows.size();
    case_.mask = std::move(mask);
    const auto last = [rows](const Bf16& x, int64_t heads) {
      return Bf16(x.end() - static_cast<int64_t>(rows) * heads * kHeadDim, x.end());
    };
    q_ = last(all.q_, case_.heads);
    dout_ = last(all.dout_, case_.heads);
    k_ = last(all.k_, case_.kv_heads);
    v_ = last(all.v_, case_.kv_heads);
    finish();
  }

  struct Gradients {
    Bf16 dq;
    std::vector<float> dk, dv;
    std::string error;
  };
  Gradients run(Kernel kernel, Schedule schedule) {
    constexpr float kBefore = 0.5f;  // what the keys' gradients are added to
    const size_t rows = case_.mask.rows.size();
    Gradients g{Bf16(q_.size(), 0xffff), std::vector<float>(k_.size(), kBefore),
                std::vector<float>(k_.size(), kBefore), ""};
    std::vector<int32_t> row_tiles((rows + 1) * cuda::kRowTileInts, -1);
    Machine machine({.workers = 2, .schedule = schedule});
    DeviceMemory memory(MemoryGuard::kPlain, 0);
    Timeline timeline(machine, memory);
    const std::shared_ptr<WorkQueue> work = timeline.make_queue();
    cuda::Queue queue;
    queue.stream = work.get();
    kernel(queue, {.dout = of_rows(dout_.data()),
                   .q = of_rows(q_.data()),
                   .k = of_keys<ConstRows>(k_.data(), DType::kBf16),
                   .v = of_keys<ConstRows>(v_.data(), DType::kBf16),
                   .out = of_rows(q_.data()),
                   .log_sum_exp = log_sum_exp_.data(),
                   .intervals = intervals_.data(),
                   .scale = kScale,
                   .dq = {g.dq.data(), DType::kBf16, static_cast<int64_t>(rows), case_.heads,
                          kHeadDim, case_.heads * kHeadDim, kHeadDim},
                   .dk = of_keys<Rows>(g.dk.data(), DType::kF32),
                   .dv = of_keys<Rows>(g.dv.data(), DType::kF32),
                   .delta = delta_.data(),
                   .row_tiles = row_tiles.data()});
    const Status done = work->finish();
    for (std::vector<float>* x : {&g.dk, &g.dv}) {
      for (float& value : *x) value -= kBefore;
    }
    g.error = queue.error;
    if (g.error.empty()) g.error = done.message();
    if (g.error.empty()) g.error = beyond_error(doubles(g.dq), expected_.dq, expected_.dq_error);
    if (g.error.empty()) g.error = beyond_error(doubles(g.dk), expected_.dk, expected_.dk_error);
    if (g.error.empty()) g.error = beyond_error(doubles(g.dv), expected_.dv, expected_.dv_error);
    return g;
  }

 private:
  static Bf16 normal(size_t count, Random& random) {
    Bf16 x(count);
    for (uint16_t& value : x) value = bf16_from_float(static_cast<float>(random.normal()));
    return x;
  }

  /// The reference, and what the kernels take from the forward pass. Unseen keys become NaN.
  void finish() {
    const std::vector<double> dout = doubles(dout_);
    expected_ = attention_reference(case_, kScale, doubles(q_), doubles(k_), doubles(v_), dout);
    log_sum_exp_.assign(expected_.log_sum_exp.begin(), expected_.log_sum_exp.end());
    delta_.resize(log_sum_exp_.size());
    for (size_t i = 0; i < dout.size(); ++i) {
      delta_[i / kHeadDim] += static_cast<float>(dout[i] * expected_.out[i]);
    }
    for (const Interval& row : case_.mask.rows) {
      for (const int64_t bound : row) intervals_.push_back(static_cast<int32_t>(bound));
    }
    const std::vector<bool> seen = seen_keys(case_.mask);
    const int64_t columns = case_.kv_heads * kHeadDim;
    for (size_t key = 0; key < seen.size(); ++key) {
      if (seen[key]) continue;
      for (Bf16* x : {&k_, &v_}) {
        std::fill_n(x->begin() + static_cast<int64_t>(key) * columns, columns, 0xffff);
      }
    }
  }

  ConstRows of_rows(const void* data) const {
    return {data,        DType::kBf16, static_cast<int64_t>(case_.mask.rows.size()),
            case_.heads, kHeadDim,     case_.heads * kHeadDim,
            kHeadDim};
  }
  template <class AnyRows, class Data>
  AnyRows of_keys(Data* data, DType dtype) const {
    return {data,    dtype, case_.mask.keys, case_.kv_heads, kHeadDim, case_.kv_heads * kHeadDim,
            kHeadDim};
  }

  Case case_;
  Bf16 q_, k_, v_, dout_;
  std::vector<float> log_sum_exp_, delta_;
  std::vector<int32_t> intervals_;
  Reference expected_;
};

class AttentionMutants : public testing::Test {
 protected:
  AttentionMutants() {
    Random random(seed_.value());
    for (const Case& c : std::vector<Case>{
             {causal({30, 1, 41, 9}), 4, 1, kHeadDim},
             {diagonal(50, 3, 2), 2, 1, kHeadDim},
             {blocks(130, 16, {70, 20, 130}), 1, 1, kHeadDim},
             {late_rows(), 32, 1, kHeadDim},
         }) {
      problems_.emplace_back(c, random);
    }
    packed_ = std::make_unique<Problem>(Case{causal({23, 40}), 1, 1, kHeadDim}, random);
    alone_ = std::make_unique<Problem>(*packed_, causal({40}));
  }

  /// What is wrong with a kernel under some schedule; "" if nothing is.
  std::string fault(Kernel kernel) {
    for (const Schedule schedule : kSchedules) {
      for (Problem& problem : problems_) {
        const std::string error = problem.run(kernel, schedule).error;
        if (!error.empty()) return error;
      }
      if (!same_bits_in_a_pack(kernel, schedule)) return "a document depends on its neighbours";
    }
    return "";
  }

  bool same_bits_in_a_pack(Kernel kernel, Schedule schedule) {
    const auto in_pack = packed_->run(kernel, schedule), own = alone_->run(kernel, schedule);
    const auto ends_with = [](const auto& all, const auto& end) {
      return std::equal(end.rbegin(), end.rend(), all.rbegin());
    };
    return ends_with(in_pack.dq, own.dq) && ends_with(in_pack.dk, own.dk) &&
           ends_with(in_pack.dv, own.dv);
  }

  TestSeed seed_{kUsualSeed};
  std::vector<Problem> problems_;
  std::unique_ptr<Problem> packed_, alone_;
};

TEST_F(AttentionMutants, AreFoundAndTheKernelsAreNot) {
  for (const Mutant& mutant : mutants()) {
    const std::string fault = this->fault(mutant.kernel);
    if (mutant.name == "no_bug") {
      EXPECT_EQ(fault, "");
    } else {
      EXPECT_NE(fault, "") << mutant.name << " was not found";
      std::cout << mutant.name << ": " << fault << "\n";
    }
  }
}

}  // namespace
}  // namespace percheron::kernel_test

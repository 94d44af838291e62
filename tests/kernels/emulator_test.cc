// A kernel per primitive of the emulator, and planted bugs that it must find. The kernels are CUDA.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/emulator/cuda_language.h"
#include "kernels/cuda/emulator/machine.h"
#include "kernels/cuda/emulator/warp_matrix.h"

namespace percheron::emulator {
namespace {

using testing::HasSubstr;

constexpr Schedule kSchedules[] = {Schedule::kForward, Schedule::kReverse, Schedule::kShuffled,
                                   Schedule::kRoundRobin};

/// Each test runs under every schedule.
class Emulator : public testing::TestWithParam<Schedule> {
 protected:
  template <class Kernel>
  Status run(Dim3 grid, Dim3 block, Kernel kernel) {
    return machine_.run({grid, block}, kernel);
  }

  Machine machine_{{.workers = 3, .schedule = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Schedules, Emulator, testing::ValuesIn(kSchedules));

std::vector<int> counted(int n) {
  std::vector<int> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST_P(Emulator, EveryThreadOfTheGridRunsOnceWithItsIndices) {
  const Dim3 grid{3, 2, 2}, block{5, 3, 2};
  std::vector<int> runs(3 * 2 * 2 * 5 * 3 * 2);
  const Status status = run(grid, block, [&] {
    const unsigned b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    ++runs[b * blockDim.x * blockDim.y * blockDim.z + t];
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

void reverse_block(int* values) {
  using Copy = int[96];
  PERCHERON_SHARED(Copy, copy);
  copy[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

TEST_P(Emulator, ABarrierShowsWhatTheOthersWrote) {
  std::vector<int> values = counted(96), expected = values;
  std::reverse(expected.begin(), expected.end());
  EXPECT_TRUE(run({1}, {96}, [&] { reverse_block(values.data()); }).ok());
  EXPECT_EQ(values, expected);
}

TEST_P(Emulator, BarriersCountVotes) {
  std::vector<int> counts(40), any(40);
  EXPECT_TRUE(run({1}, {40}, [&] {
                const int i = static_cast<int>(threadIdx.x);
                counts[threadIdx.x] = __syncthreads_count(i % 3 == 0 ? 1 : 0);
                any[threadIdx.x] = __syncthreads_or(i > 40 ? 1 : 0);
              }).ok());
  EXPECT_EQ(counts, std::vector<int>(40, 14));
  EXPECT_EQ(any, std::vector<int>(40, 0));
}

TEST_P(Emulator, ThreadsThatHaveEndedAreNotWaitedFor) {
  std::vector<int> values(64);
  EXPECT_TRUE(run({1}, {64}, [&] {
                if (threadIdx.x % 2 == 1) return;
                values[threadIdx.x] = __syncthreads_count(1) + __builtin_popcount(__activemask());
                __syncthreads();  // Nobody ends before everybody has looked.
              }).ok());
  EXPECT_EQ(values[0], 32 + 16);
  EXPECT_EQ(values[62], 32 + 16);
}

TEST_P(Emulator, ShufflesMoveValuesWithinTheirWidth) {
  std::vector<int> fixed(32), across(32), down(32), up(32);
  EXPECT_TRUE(run({1}, {32}, [&] {
                const int lane = static_cast<int>(threadIdx.x);
                fixed[threadIdx.x] = __shfl_sync(~0u, lane, 3, 8);
                across[threadIdx.x] = __shfl_xor_sync(~0u, lane, 5);
                down[threadIdx.x] = __shfl_down_sync(~0u, lane, 6, 16);
                up[threadIdx.x] = __shfl_up_sync(~0u, lane, 2, 4);
              }).ok());
  for (int lane = 0; lane < 32; ++lane) {
    const auto i = static_cast<size_t>(lane);
    EXPECT_EQ(fixed[i], lane / 8 * 8 + 3);
    EXPECT_EQ(across[i], lane ^ 5);
    EXPECT_EQ(down[i], lane % 16 + 6 < 16 ? lane + 6 : lane);
    EXPECT_EQ(up[i], lane % 4 >= 2 ? lane - 2 : lane);
  }
}

TEST_P(Emulator, ALaneThatIsNotThereGivesPoison) {
  std::vector<float> values(16);
  EXPECT_TRUE(run({1}, {16}, [&] { values[threadIdx.x] = __shfl_xor_sync(~0u, 1.f, 16); }).ok());
  for (const float value : values) EXPECT_TRUE(std::isnan(value));
}

TEST_P(Emulator, VotesSeeTheLanesOfTheMask) {
  std::vector<unsigned> ballots(40), all(40), any(40);
  EXPECT_TRUE(run({1}, {40}, [&] {
                const int odd = static_cast<int>(threadIdx.x % 2);
                ballots[threadIdx.x] = __ballot_sync(~0u, odd);
                all[threadIdx.x] = static_cast<unsigned>(__all_sync(~0u, odd));
                any[threadIdx.x] = static_cast<unsigned>(__any_sync(~0u, odd));
              }).ok());
  EXPECT_EQ(ballots[0], 0xaaaaaaaau);
  EXPECT_EQ(ballots[39], 0xaau);
  EXPECT_EQ(all, std::vector<unsigned>(40, 0));
  EXPECT_EQ(any, std::vector<unsigned>(40, 1));
}

TEST_P(Emulator, HalvesOfAWarpMeetApart) {
  std::vector<int> sums(32);
  EXPECT_TRUE(run({1}, {32}, [&] {
                const unsigned mask = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
                int value = static_cast<int>(threadIdx.x);
                for (int distance = 8; distance > 0; distance /= 2) {
                  value += __shfl_xor_sync(mask, value, distance);
                }
                sums[threadIdx.x] = value;
              }).ok());
  EXPECT_EQ(sums[5], 120);
  EXPECT_EQ(sums[20], 120 + 256);
}

TEST_P(Emulator, AWarpBarrierOrdersSharedMemory) {
  std::vector<int> values(32);
  EXPECT_TRUE(run({1}, {32}, [&] {
                using Copy = int[32];
                PERCHERON_SHARED(Copy, copy);
                copy[threadIdx.x] = static_cast<int>(threadIdx.x);
                __syncwarp();
                values[threadIdx.x] = copy[31 - threadIdx.x];
              }).ok());
  EXPECT_EQ(values[0], 31);
  EXPECT_EQ(values[31], 0);
}

TEST_P(Emulator, AtomicsLoseNothingAcrossBlocks) {
  int sum = 0, largest = -1, smallest = 1000000, swapped = -1;
  float total = 0;
  EXPECT_TRUE(run({20}, {64}, [&] {
                const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
                atomicAdd(&sum, 1);
                atomicAdd(&total, 0.5f);
                atomicMax(&largest, i);
                atomicMin(&smallest, i);
                atomicCAS(&swapped, -1, 7);
              }).ok());
  EXPECT_EQ(sum, 1280);
  EXPECT_EQ(total, 640.f);
  EXPECT_EQ(largest, 1279);
  EXPECT_EQ(smallest, 0);
  EXPECT_EQ(swapped, 7);
}

// --- Tensor cores and asynchronous copies
// ---------------------------------------------------------

uint16_t bf16_bits(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);  // exact for small integers
}

using Matrix16 = uint16_t[16][16];

/// d [16, 8] = a [16, 16] b [16, 8] with b's columns as rows of `b_columns` [8, 16]: operands by
/// ldmatrix, so that both fragment layouts are tested against each other and the definition.
void multiply_16(const uint16_t* a, const uint16_t* b_columns, float* d) {
  PERCHERON_SHARED(Matrix16, a_tile);
  PERCHERON_SHARED(Matrix16, b_tile);
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) a_tile[i / 16][i % 16] = a[i];
  for (unsigned i = lane; i < 128; i += 32) b_tile[i / 16][i % 16] = b_columns[i];
  __syncwarp();
  uint32_t a_registers[4], b_registers[4];
  load_matrices(a_registers, &a_tile[lane % 16][lane / 16 * 8], Transposed::kNo);
  load_matrices(b_registers, &b_tile[lane % 8][lane / 8 % 2 * 8], Transposed::kNo);
  float sums[4] = {0, 0, 0, 0};
  mma_m16n8k16(sums, a_registers, {b_registers[0], b_registers[1]});
  for (unsigned e = 0; e < 4; ++e) {
    d[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = sums[e];
  }
}

TEST_P(Emulator, TensorCoresMultiplyWhatLdmatrixLoads) {
  std::vector<uint16_t> a(256), b(128);
  std::vector<float> d(128), expected(128);
  const auto a_at = [](size_t i, size_t k) { return static_cast<float>((i * 7 + k * 3) % 11) - 5; };
  const auto b_at = [](size_t k, size_t j) { return static_cast<float>((k * 5 + j) % 13) - 6; };
  for (size_t i = 0; i < 16; ++i) {
    for (size_t k = 0; k < 16; ++k) a[i * 16 + k] = bf16_bits(a_at(i, k));
    for (size_t j = 0; j < 8; ++j) {
      b[j * 16 + i] = bf16_bits(b_at(i, j));
      for (size_t k = 0; k < 16; ++k) expected[i * 8 + j] += a_at(i, k) * b_at(k, j);
    }
  }
  EXPECT_TRUE(run({1}, {32}, [&] { multiply_16(a.data(), b.data(), d.data()); }).ok());
  EXPECT_EQ(d, expected);
}

TEST_P(Emulator, LdmatrixTransposesWithinEachMatrix) {
  std::vector<uint32_t> plain(128), transposed(128);
  EXPECT_TRUE(run({1}, {32}, [&] {
                PERCHERON_SHARED(Matrix16, tile);
                const unsigned lane = threadIdx.x;
                for (unsigned i = lane; i < 256; i += 32) {
                  tile[i / 16][i % 16] = static_cast<uint16_t>(i);
                }
                __syncwarp();
                const uint16_t* row = &tile[lane % 16][lane / 16 * 8];
                uint32_t registers[4];
                load_matrices(registers, row, Transposed::kNo);
                std::copy_n(registers, 4, plain.data() + lane * 4);
                load_matrices(registers, row, Transposed::kYes);
                std::copy_n(registers, 4, transposed.data() + lane * 4);
              }).ok());
  // Lane 5 holds row 1, columns 2 and 3; transposed, rows 2 and 3 of column 1. Matrix 3 begins at
  // row 8, column 8.
  EXPECT_EQ(plain[5 * 4], (1u * 16 + 2) | (1u * 16 + 3) << 16);
  EXPECT_EQ(plain[5 * 4 + 3], (9u * 16 + 10) | (9u * 16 + 11) << 16);
  EXPECT_EQ(transposed[5 * 4], (2u * 16 + 1) | (3u * 16 + 1) << 16);
  EXPECT_EQ(transposed[5 * 4 + 3], (10u * 16 + 9) | (11u * 16 + 9) << 16);
}

/// Copies 32 x 4 floats through shared memory; `left` groups are not waited for.
void copy_through_shared(const float* source, float* target, size_t left) {
  using Rows = float[2][32][4];
  PERCHERON_SHARED(Rows, rows);
  AsyncCopies& copies = this_thread().copies;
  for (int half = 0; half < 2; ++half) {
    copies.add(rows[half][threadIdx.x], source + (half * 32 + static_cast<int>(threadIdx.x)) * 4,
               16);
    copies.commit();
  }
  copies.wait(left);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) {
      target[(half * 32 + static_cast<int>(threadIdx.x)) * 4 + i] = rows[half][threadIdx.x][i];
    }
  }
  copies.wait(0);
}

TEST_P(Emulator, AsynchronousCopiesArePoisonUntilTheyAreWaitedFor) {
  alignas(16) float source[256], target[256];
  for (int i = 0; i < 256; ++i) source[i] = static_cast<float>(i);
  EXPECT_TRUE(run({1}, {32}, [&] { copy_through_shared(source, target, 0); }).ok());
  for (int i = 0; i < 256; ++i) EXPECT_EQ(target[i], source[i]);
  EXPECT_TRUE(run({1}, {32}, [&] { copy_through_shared(source, target, 1); }).ok());
  for (int i = 0; i < 128; ++i) EXPECT_EQ(target[i], source[i]);
  for (int i = 128; i < 256; ++i) EXPECT_TRUE(std::isnan(target[i]));
}

// --- Planted bugs --------------------------------------------------------------------------------

TEST_P(Emulator, SharedMemoryIsPoisonUntilItIsWritten) {
  std::vector<float> sums(8);
  EXPECT_TRUE(run({8}, {32}, [&] {
                PERCHERON_SHARED(float, sum);
                if (threadIdx.x == 0) sum += 1;
                __syncthreads();
                if (threadIdx.x == 0) sums[blockIdx.x] = sum;
              }).ok());
  for (const float sum : sums) EXPECT_TRUE(std::isnan(sum));
}

TEST_P(Emulator, DivergentBarriersAreFound) {
  const Status status = run({1}, {64}, [&] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  });
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("divergent barriers: __syncthreads at "));
  EXPECT_THAT(status.message(), HasSubstr("emulator_test.cc:"));
  EXPECT_THAT(status.message(), HasSubstr("[block 0,0,0, thread "));
}

TEST_P(Emulator, DivergentWarpsAreFound) {
  const Status status = run({1}, {32}, [&] {
    if (threadIdx.x < 7) {
      __shfl_xor_sync(~0u, 1, 1);
    } else {
      __ballot_sync(~0u, 1);
    }
  });
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("divergent warp: "));
}

TEST_P(Emulator, ALaneOutsideItsMaskIsFound) {
  const Status status = run({1}, {32}, [&] { __syncwarp(0xfu); });
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("the calling lane is not in the mask"));
}

TEST_P(Emulator, DeadlocksAreReportedWithWhoWaitsWhere) {
  const Status status = run({1}, {64}, [&] {
    if (threadIdx.x == 3) {
      __syncthreads();
    } else {
      __syncwarp();
      __syncthreads();
    }
  });
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), testing::AnyOf(HasSubstr("deadlock in block 0,0,0"),
                                               HasSubstr("divergent barriers")));
}

TEST_P(Emulator, CopiesThatNobodyWaitsForAreFound) {
  alignas(16) float source[4] = {}, target[4];
  const Status status = run({1}, {1}, [&] { this_thread().copies.add(target, source, 16); });
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("cp.async: a thread ended with copies under way"));
}

TEST_P(Emulator, MisalignedCopiesAndMatricesAreFound) {
  alignas(16) char bytes[64] = {};
  const Status copy = run({1}, {1}, [&] { this_thread().copies.add(bytes, bytes + 34, 16); });
  EXPECT_THAT(copy.message(), HasSubstr("cp.async: an address is not aligned"));
  const Status matrices = run({1}, {32}, [&] {
    uint32_t registers[4];
    load_matrices(registers, bytes + 8, Transposed::kNo);
  });
  EXPECT_THAT(matrices.message(), HasSubstr("ldmatrix: a row is not aligned to 16 bytes"));
}

TEST_P(Emulator, TensorCoresNeedAWholeWarp) {
  const Status status = run({1}, {24}, [&] {
    float d[4] = {};
    mma_m16n8k16(d, {0, 0, 0, 0}, {0, 0});
  });
  EXPECT_THAT(status.message(), HasSubstr("mma.m16n8k16: the warp is not whole"));
}

TEST_P(Emulator, LaunchesBeyondCudasLimitsAreRefused) {
  for (const LaunchShape& shape :
       {LaunchShape{{1}, {1025}}, LaunchShape{{1}, {0}}, LaunchShape{{0}, {32}},
        LaunchShape{{1, 65536}, {32}}, LaunchShape{{1}, {1, 1, 65}},
        LaunchShape{{1}, {32}, size_t{232449}}}) {
    const Status status = machine_.run(shape, [] {});
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("beyond CUDA's limits"));
  }
}

TEST_P(Emulator, AMachineRunsOnAfterAnError) {
  for (int time = 0; time < 3; ++time) {
    EXPECT_FALSE(run({50}, {96}, [&] {
                   __syncthreads();
                   if (blockIdx.x == 30) __syncwarp(1u);
                 }).ok());
    std::vector<int> values = counted(96);
    EXPECT_TRUE(run({1}, {96}, [&] { reverse_block(values.data()); }).ok());
    EXPECT_EQ(values[0], 95);
  }
}

// Under ThreadSanitizer missing barriers would be reported as the races that they are.
#if !defined(__SANITIZE_THREAD__)
/// Sums a block's values through shared memory; `barriers` says which of its three barriers stand.
void sum_block(const std::array<bool, 3>& barriers, const int* values, int* sums) {
  using Partial = int[4];
  PERCHERON_SHARED(Partial, partial);
  for (int round = 0; round < 2; ++round) {
    int value = values[threadIdx.x] + round;
    for (int distance = 16; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(~0u, value, distance);
    }
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    if (barriers[0]) __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 1; i < 4; ++i) partial[0] += partial[i];
    }
    if (barriers[1]) __syncthreads();
    sums[static_cast<unsigned>(round) * 128 + threadIdx.x] = partial[0];
    if (barriers[2]) __syncthreads();
  }
}

/// Under how many schedules the sums are right.
int schedules_with_right_sums(const std::array<bool, 3>& barriers) {
  std::vector<int> expected(256, 8128);
  std::fill_n(expected.begin() + 128, 128, 8128 + 128);
  int right = 0;
  for (const Schedule schedule : kSchedules) {
    Machine machine({.schedule = schedule});
    std::vector<int> values = counted(128), sums(256);
    const Status status =
        machine.run({{1}, {128}}, [&] { sum_block(barriers, values.data(), sums.data()); });
    EXPECT_TRUE(status.ok()) << status.message();
    if (sums == expected) ++right;
  }
  return right;
}

TEST(EmulatorSchedules, ShowEachMissingBarrier) {
  EXPECT_EQ(schedules_with_right_sums({true, true, true}), 4);
  EXPECT_LT(schedules_with_right_sums({false, true, true}), 4);
  EXPECT_LT(schedules_with_right_sums({true, false, true}), 4);
  EXPECT_LT(schedules_with_right_sums({true, true, false}), 4);
}
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
using EmulatorDeathTest = testing::TestWithParam<Schedule>;
INSTANTIATE_TEST_SUITE_P(Schedules, EmulatorDeathTest, testing::ValuesIn(kSchedules));
#endif

#if defined(__SANITIZE_ADDRESS__)
TEST_P(EmulatorDeathTest, AddressSanitizerSeesOneElementTooFar) {
  const auto overrun = [](unsigned index) {
    Machine machine({.schedule = GetParam()});
    return machine.run({{1}, {32}}, [index] {
      using Values = int[32];
      PERCHERON_SHARED(Values, values);
      int* first = values;
      first[threadIdx.x + index] = 1;
    });
  };
  EXPECT_TRUE(overrun(0).ok());
  EXPECT_DEATH((void)overrun(1), "heap-buffer-overflow");
}
#endif

#if defined(__SANITIZE_THREAD__)
TEST_P(EmulatorDeathTest, ThreadSanitizerSeesRacesWithinABlock) {
  const auto add = [](bool atomic) {
    Machine machine({.schedule = GetParam()});
    int sum = 0;
    const Status status = machine.run({{2}, {64}}, [&] {
      if (atomic) {
        atomicAdd(&sum, 1);
      } else {
        sum += 1;
      }
    });
    std::exit(status.ok() ? 0 : 1);  // where ThreadSanitizer adds its own code
  };
  EXPECT_EXIT(add(true), testing::ExitedWithCode(0), "");
  EXPECT_DEATH(add(false), "data race");
}
#endif

}  // namespace
}  // namespace percheron::emulator

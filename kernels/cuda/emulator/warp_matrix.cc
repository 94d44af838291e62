#include "kernels/cuda/emulator/warp_matrix.h"

#include <bit>
#include <cstring>

#include "kernels/cuda/emulator/block.h"

namespace percheron::emulator {
namespace {

constexpr unsigned kAllLanes = ~0u;
constexpr size_t kRowAlignment = 16;

struct Fragments {
  uint32_t a[4], b[2];
};

template <class T>
T deposit(const Deposits& deposits, unsigned lane) {
  T value;
  std::memcpy(&value, deposits.bytes[lane], sizeof value);
  return value;
}

float low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float high(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

void require_full_warp(const Deposits& deposits, const char* operation) {
  if (deposits.lanes != kAllLanes) {
    this_thread().block->fail(operation, "the warp is not whole");
  }
}

}  // namespace

void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  constexpr const char* kName = "mma.m16n8k16";
  const Fragments mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const Deposits& deposits = this_thread().block->exchange(kAllLanes, kName, &mine, sizeof mine,
                                                           Block::Memory::kNotOrdered);
  require_full_warp(deposits, kName);
  // The thread holds d at rows group and group + 8, columns 2 quad and 2 quad + 1.
  const unsigned group = this_thread().lane() / 4, quad = this_thread().lane() % 4;
  float rows[2][16], columns[2][16];
  for (unsigned q = 0; q < 4; ++q) {
    const auto row_lane = deposit<Fragments>(deposits, group * 4 + q);
    for (unsigned i = 0; i < 2; ++i) {
      const auto column_lane = deposit<Fragments>(deposits, (quad * 2 + i) * 4 + q);
      for (unsigned half = 0; half < 2; ++half) {
        rows[i][half * 8 + q * 2] = low(row_lane.a[i + 2 * half]);
        rows[i][half * 8 + q * 2 + 1] = high(row_lane.a[i + 2 * half]);
        columns[i][half * 8 + q * 2] = low(column_lane.b[half]);
        columns[i][half * 8 + q * 2 + 1] = high(column_lane.b[half]);
      }
    }
  }
  for (unsigned i = 0; i < 2; ++i) {
    for (unsigned j = 0; j < 2; ++j) {
      // The sixteen products first, as on a GPU: sums that depend on how operands are cut into
      // sixteens show it here too.
      float sum = 0;
      for (unsigned k = 0; k < 16; ++k) sum += rows[i][k] * columns[j][k];
      d[i * 2 + j] += sum;
    }
  }
}

void load_matrices(uint32_t (&registers)[4], const void* row, Transposed transposed) {
  const char* name = transposed == Transposed::kYes ? "ldmatrix.trans" : "ldmatrix";
  Block& block = *this_thread().block;
  if (reinterpret_cast<uintptr_t>(row) % kRowAlignment != 0) {
    block.fail(name, "a row is not aligned to 16 bytes");
  }
  const Deposits& deposits =
      block.exchange(kAllLanes, name, &row, sizeof row, Block::Memory::kNotOrdered);
  require_full_warp(deposits, name);
  const unsigned major = this_thread().lane() / 4, minor = this_thread().lane() % 4 * 2;
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    uint32_t pair = 0;
    for (unsigned k = 0; k < 2; ++k) {
      const unsigned r = transposed == Transposed::kYes ? minor + k : major;
      const unsigned c = transposed == Transposed::kYes ? major : minor + k;
      const uint16_t* source = deposit<const uint16_t*>(deposits, matrix * 8 + r);
      pair |= uint32_t{source[c]} << (16 * k);
    }
    registers[matrix] = pair;
  }
  // Nobody of the warp writes before everybody has read.
  block.exchange(kAllLanes, name, nullptr, 0, Block::Memory::kNotOrdered);
}

}  // namespace percheron::emulator

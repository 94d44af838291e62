#pragma once

#include <cstdint>

namespace percheron::emulator {

/// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: d += a b, a [16, 16], b [16, 8], d [16, 8],
/// spread over the warp's registers as the PTX ISA says.
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

/// ldmatrix.sync.aligned.m8n8.x4.shared.b16: four 8 x 8 matrices of 16-bit elements; lane i gives
/// the address of row i % 8 of matrix i / 8, aligned to 16 bytes.
enum class Transposed { kNo, kYes };
void load_matrices(uint32_t (&registers)[4], const void* row, Transposed transposed);

}  // namespace percheron::emulator

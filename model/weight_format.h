#pragma once

#include <optional>
#include <string_view>

#include "kernels/tensor.h"

namespace percheron {

/// How a frozen target keeps the matrices of its decoder layers. With 8 bits each output channel
/// has a scale, and a matrix is expanded to the type of its products where it is used. Embedding,
/// norms, biases and head are never kept so.
enum class WeightFormat {
  kFull,  // in the type of its products
  kInt8,
  kFp8,  // e4m3: 4 bits of exponent, 3 of mantissa
};

/// When weights of 8 bits are expanded. The results are the same to the bit.
enum class WeightExpansion {
  kEachPass,  // a byte a weight in memory
  kOnce,      // as they are loaded: the memory of full weights, and their speed for few rows
};

inline std::string_view weight_format_name(WeightFormat format) {
  if (format == WeightFormat::kFull) return "full";
  return format == WeightFormat::kInt8 ? "int8" : "fp8";
}

/// The dtype of the codes; none for kFull.
inline std::optional<DType> code_dtype(WeightFormat format) {
  if (format == WeightFormat::kFull) return std::nullopt;
  return format == WeightFormat::kInt8 ? DType::kI8 : DType::kF8E4m3;
}

}  // namespace percheron

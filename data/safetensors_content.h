#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/safetensors.h"
#include "kernels/tensor.h"

namespace percheron {

/// What a safetensors file is made of, for who writes it to other places than a file.
struct SafetensorsContent {
  std::string header;
  std::vector<ConstTensorView> tensors;  // behind the header, one behind the other; borrowed
  uint64_t bytes = 0;                    // of all
};

/// Lays out a file as write_safetensors() writes it. kInvalidArgument, naming `path`, for a
/// repeated or reserved name, a strided view, text that is not UTF-8.
Result<SafetensorsContent> lay_out_safetensors(const std::string& path,
                                               std::span<const NamedTensor> tensors,
                                               const std::map<std::string, std::string>& metadata);

}  // namespace percheron

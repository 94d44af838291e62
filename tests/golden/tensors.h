#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/safetensors.h"
#include "tests/golden/runner.h"

namespace percheron::golden {

/// The elements of a golden tensor. Errors name the file and what is wrong with the tensor.
Result<std::vector<int64_t>> read_integers(const SafetensorsFile& file, const std::string& name);
Result<std::vector<float>> read_floats(const SafetensorsFile& file, const std::string& name);

/// The file's metadata under `key`, as text or as a number; kInvalidArgument without it.
Result<std::string> metadata_text(const SafetensorsFile& file, const std::string& key);
Result<double> metadata_number(const SafetensorsFile& file, const std::string& key);

/// The largest absolute difference; infinite if the sizes differ or a value is not a number.
double largest_difference(const std::vector<float>& actual, const std::vector<float>& expected);

/// Appends 0 where the two are equal, else infinity: for token ids and counts.
template <class T>
void expect_equal(Report& report, const std::string& what, const T& actual, const T& expected) {
  report.differences.push_back({what, actual == expected ? 0.0 : 1.0 / 0.0, 0.0});
}

}  // namespace percheron::golden

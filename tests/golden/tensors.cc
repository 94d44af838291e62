#include "tests/golden/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace percheron::golden {

bool Report::passed() const {
  return !differences.empty() &&
         std::all_of(differences.begin(), differences.end(),
                     [](const Difference& d) { return d.largest <= d.tolerance; });
}

Result<std::vector<int64_t>> read_integers(const SafetensorsFile& file, const std::string& name) {
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView view, file.tensor(name));
  if (view.dtype() != DType::kI64) {
    return invalid_argument(file.path() + ": tensor '" + name + "' is " + describe(view) +
                            ", not I64");
  }
  const int64_t* values = view.as<int64_t>();
  return std::vector<int64_t>(values, values + view.elements());
}

Result<std::vector<float>> read_floats(const SafetensorsFile& file, const std::string& name) {
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView view, file.tensor(name));
  if (view.dtype() != DType::kF32) {
    return invalid_argument(file.path() + ": tensor '" + name + "' is " + describe(view) +
                            ", not F32");
  }
  const float* values = view.as<float>();
  return std::vector<float>(values, values + view.elements());
}

Result<std::string> metadata_text(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found != file.metadata().end()) return found->second;
  return invalid_argument(file.path() + ": metadata '" + key + "' is missing");
}

Result<double> metadata_number(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  char* end = nullptr;
  const double value =
      found == file.metadata().end() ? 0.0 : std::strtod(found->second.c_str(), &end);
  if (end == nullptr || end == found->second.c_str() || *end != '\0') {
    return invalid_argument(file.path() + ": metadata '" + key + "' is no number");
  }
  return value;
}

double largest_difference(const std::vector<float>& actual, const std::vector<float>& expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return kInfinity;
  double largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(double{actual[i]} - double{expected[i]});
    if (!(difference <= kInfinity)) return kInfinity;
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace percheron::golden

#include "data/length_file.h"

#include <array>
#include <charconv>
#include <string_view>

#include "base/json.h"
#include "base/units.h"
#include "data/length_buckets.h"
#include "data/token_shard.h"

namespace percheron {
namespace {

Status bad_length(const std::string& where, const std::string& value) {
  return invalid_argument(where + " is " + value + ": expected a length in tokens from 1 to " +
                          format_count(kLengthMax));
}

Result<std::vector<int32_t>> shard_lengths(FileSystem& files, const std::string& path) {
  const std::array<std::string, 1> paths{path};
  PERCHERON_ASSIGN_OR_RETURN(const TokenDataset dataset, TokenDataset::open(files, paths));
  std::vector<int32_t> lengths(static_cast<size_t>(dataset.samples()));
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = dataset.length(static_cast<int64_t>(i));
    if (length > kLengthMax)
      return bad_length(dataset.describe(static_cast<int64_t>(i)), std::to_string(length));
    lengths[i] = static_cast<int32_t>(length);
  }
  return lengths;
}

Result<std::vector<int32_t>> text_lengths(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
  std::vector<int32_t> lengths;
  int64_t line_number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    ++line_number;
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    int64_t length = 0;
    const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), length);
    if (error != std::errc() || stop != line.data() + line.size() || length < 1 ||
        length > kLengthMax) {
      constexpr size_t kShownMax = 40;
      return bad_length(path + ":" + std::to_string(line_number),
                        "'" + std::string(line.substr(0, kShownMax)) + "'");
    }
    lengths.push_back(static_cast<int32_t>(length));
  }
  if (lengths.empty())
    return invalid_argument(path + " is empty: expected one length in tokens a line");
  return lengths;
}

struct Quantiles {
  int64_t samples = 0;
  std::vector<double> quantile, length;
};

Status check_quantiles(const Quantiles& given, const std::string& path) {
  if (given.samples < 1 || given.samples > kLengthsMax)
    return invalid_argument(path + ": 'samples' is " + std::to_string(given.samples) +
                            ", expected 1 to " + format_count(kLengthsMax));
  const size_t points = given.quantile.size();
  if (points < 2 || points != given.length.size())
    return invalid_argument(path + ": 'quantile' has " + std::to_string(points) +
                            " points and 'length' " + std::to_string(given.length.size()) +
                            ", expected as many, at least 2");
  if (given.quantile.front() != 0 || given.quantile.back() != 1)
    return invalid_argument(path + ": 'quantile' must begin with 0 and end with 1");
  for (size_t i = 0; i < points; ++i) {
    if (!(given.length[i] >= 1 && given.length[i] <= static_cast<double>(kLengthMax)))
      return bad_length(path + ": 'length' number " + std::to_string(i),
                        std::to_string(given.length[i]));
    if (i > 0 &&
        !(given.quantile[i] > given.quantile[i - 1] && given.length[i] >= given.length[i - 1]))
      return invalid_argument(path + ": 'quantile' and 'length' must ascend, but point " +
                              std::to_string(i) + " does not");
  }
  return ok_status();
}

Result<std::vector<int32_t>> quantile_lengths(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json object, parse_json(text, path));
  Quantiles given;
  PERCHERON_ASSIGN_OR_RETURN(given.samples, json_get<int64_t>(object, "samples", path));
  PERCHERON_ASSIGN_OR_RETURN(given.quantile,
                             json_get<std::vector<double>>(object, "quantile", path));
  PERCHERON_ASSIGN_OR_RETURN(given.length, json_get<std::vector<double>>(object, "length", path));
  PERCHERON_RETURN_IF_ERROR(check_quantiles(given, path));
  std::vector<int32_t> lengths(static_cast<size_t>(given.samples));
  size_t point = 1;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const double at = (static_cast<double>(i) + 0.5) / static_cast<double>(given.samples);
    while (at > given.quantile[point]) ++point;
    const double from = given.quantile[point - 1], width = given.quantile[point] - from;
    const double low = given.length[point - 1], rise = given.length[point] - low;
    lengths[i] = static_cast<int32_t>(low + rise / width * (at - from));
  }
  return lengths;
}

}  // namespace

Result<std::vector<int32_t>> read_lengths(FileSystem& files, const std::string& path) {
  if (!files.exists(path)) return not_found(path + " does not exist");
  if (path.ends_with(".json")) return quantile_lengths(files, path);
  // A directory has no size as a file.
  const bool shard = path.ends_with(".safetensors") || !files.file_size(path).ok();
  return shard ? shard_lengths(files, path) : text_lengths(files, path);
}

}  // namespace percheron

#include "tools/answer_lines.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWhat = "a prompt's line";

// Never throws: bytes that are no UTF-8, as in a path, become U+FFFD.
std::string line_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<uint64_t> number_of(const nlohmann::json& request, std::string_view key) {
  PERCHERON_ASSIGN_OR_RETURN(const int64_t value, json_get<int64_t>(request, key, kWhat));
  if (value >= 0) return static_cast<uint64_t>(value);
  return invalid_argument(fmt::format("{}: {} is {}, it must not be negative", kWhat, key, value));
}

}  // namespace

Result<GenerationRequest> parse_request(std::string_view line) {
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json parsed, parse_json(line, kWhat));
  GenerationRequest request;
  PERCHERON_ASSIGN_OR_RETURN(request.id, number_of(parsed, "id"));
  PERCHERON_ASSIGN_OR_RETURN(request.sample_key, number_of(parsed, "sample_key"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                             json_get<std::vector<int64_t>>(parsed, "prompt", kWhat));
  for (const int64_t id : ids) {
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return invalid_argument(fmt::format("{}: token {} is out of range", kWhat, id));
    }
    request.prompt.push_back(static_cast<int32_t>(id));
  }
  return request;
}

std::string ready_line(const std::string& weights_hash, int64_t context_max, int64_t capacity) {
  return line_of({{"ready", true},
                  {"weights_hash", weights_hash},
                  {"context_max", context_max},
                  {"capacity", capacity}});
}

std::string answer_line(uint64_t id, const Generated& answer) {
  return line_of({{"id", id}, {"tokens", answer.tokens}, {"stopped", answer.stopped}});
}

std::string refusal_line(uint64_t id, const Status& why) {
  const bool too_long = why.code() == StatusCode::kResourceExhausted;
  return line_of({{"id", id},
                  {"refused", too_long ? "prompt_too_long" : "prompt_not_answerable"},
                  {"detail", why.message()}});
}

std::string error_line(const Status& error) { return line_of({{"error", error.message()}}); }

}  // namespace percheron

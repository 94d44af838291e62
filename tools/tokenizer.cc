#include "tools/tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace percheron {
namespace {

using Json = nlohmann::json;

Result<std::vector<int32_t>> ids_of(const Result<std::string>& answer) {
  if (!answer.ok()) return answer.status();
  PERCHERON_ASSIGN_OR_RETURN(const Json parsed, parse_json(*answer, "the tokenizer's answer"));
  PERCHERON_ASSIGN_OR_RETURN(
      const std::vector<int64_t> numbers,
      json_get<std::vector<int64_t>>(parsed, "ids", "the tokenizer's answer"));
  std::vector<int32_t> ids(numbers.begin(), numbers.end());
  return ids;
}

/// Never throws: bytes that are no UTF-8, as on a command line, become U+FFFD.
std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::start(const std::string& model) {
  PERCHERON_ASSIGN_OR_RETURN(const PythonEnvironment python, find_python_environment());
  PERCHERON_ASSIGN_OR_RETURN(ChildProcess process,
                             ChildProcess::start(python, {"tokenize", "--model", model}));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(process)));
  PERCHERON_ASSIGN_OR_RETURN(const std::string info, tokenizer->ask(text_of(Json{{"op", "info"}})));
  return tokenizer;
}

Result<std::string> Tokenizer::ask(const std::string& request) {
  PERCHERON_RETURN_IF_ERROR(process_.write_line(request));
  PERCHERON_ASSIGN_OR_RETURN(std::string answer, process_.read_line());
  PERCHERON_ASSIGN_OR_RETURN(const Json parsed, parse_json(answer, "the tokenizer's answer"));
  if (parsed.contains("error")) {
    const Json& error = parsed["error"];
    return invalid_argument("tokenizer: " +
                            (error.is_string() ? error.get<std::string>() : text_of(error)));
  }
  return answer;
}

Result<std::vector<int32_t>> Tokenizer::encode_prompt(const Json& row) {
  return ids_of(ask(text_of(Json{{"op", "encode_prompt"}, {"row", row}})));
}

Result<std::vector<int32_t>> Tokenizer::encode_user_message(const std::string& text) {
  const Json messages = Json::array({{{"role", "user"}, {"content", text}}});
  return ids_of(ask(text_of(Json{{"op", "encode_chat"}, {"messages", messages}})));
}

Result<Decoded> Tokenizer::decode(std::span<const int32_t> ids) {
  const Json request{{"op", "decode"}, {"ids", std::vector<int32_t>(ids.begin(), ids.end())}};
  PERCHERON_ASSIGN_OR_RETURN(const std::string answer, ask(text_of(request)));
  PERCHERON_ASSIGN_OR_RETURN(const Json parsed, parse_json(answer, "the tokenizer's answer"));
  Decoded decoded;
  PERCHERON_ASSIGN_OR_RETURN(decoded.text,
                             json_get<std::string>(parsed, "text", "the tokenizer's answer"));
  PERCHERON_ASSIGN_OR_RETURN(decoded.pieces, json_get<std::vector<std::string>>(
                                                 parsed, "pieces", "the tokenizer's answer"));
  return decoded;
}

}  // namespace percheron

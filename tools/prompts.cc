#include "tools/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "data/token_shard.h"

namespace percheron {
namespace {

using Json = nlohmann::json;
using Prompt = std::vector<int32_t>;

constexpr std::string_view kShardSuffix = ".safetensors";

Result<TokenDataset> open_shard(FileSystem& files, const std::string& path) {
  const std::array<std::string, 1> paths{path};
  return TokenDataset::open(files, paths);
}

Result<std::vector<Prompt>> prompts_of_shard(FileSystem& files, const std::string& path,
                                             int64_t limit) {
  PERCHERON_ASSIGN_OR_RETURN(const TokenDataset data, open_shard(files, path));
  return prompts_of_dataset(data, limit);
}

Result<std::vector<Prompt>> prompts_of_jsonl(FileSystem& files, const std::string& path,
                                             LazyTokenizer& tokenizer, int64_t limit) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
  PERCHERON_ASSIGN_OR_RETURN(Tokenizer* const encoder, tokenizer.get());
  std::vector<Prompt> prompts;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (limit != 0 && static_cast<int64_t>(prompts.size()) == limit) break;
    const std::string where = fmt::format("{}:{}", path, line_number);
    PERCHERON_ASSIGN_OR_RETURN(const Json row, parse_json(line, where));
    if (!row.is_object()) return invalid_argument(fmt::format("{}: a row is a JSON object", where));
    Result<Prompt> ids = encoder->encode_prompt(row);
    if (!ids.ok()) return ids.status().with_context(where);
    prompts.push_back(std::move(ids).value());
  }
  return prompts;
}

}  // namespace

Result<std::vector<Prompt>> prompts_of_dataset(const TokenDataset& data, int64_t limit) {
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < data.samples() && (limit == 0 || i < limit); ++i) {
    const auto tokens = data.tokens(i);
    const auto mask = data.mask(i);
    const auto answer = std::find(mask.begin(), mask.end(), 1) - mask.begin();
    if (answer == 0) {
      return invalid_argument(
          fmt::format("{}: the row begins with an answer, so it has no prompt", data.describe(i)));
    }
    prompts.emplace_back(tokens.begin(), tokens.begin() + answer);
  }
  return prompts;
}

std::string thinking_of_dataset(const TokenDataset& data) {
  const Result<Json> options = parse_json(data.options(), "options");
  if (!options.ok() || !options->is_object())
    return "not said by the shards, or not the same in all";
  const Json thinking = options->value("thinking", Json("supervise"));
  const Json variables = options->value("template_variables", Json::object());
  return fmt::format("{}, template variables {}",
                     thinking.is_string() ? thinking.get<std::string>() : "?",
                     variables.empty() ? "none" : shown(variables));
}

Result<std::string> thinking_of_prompts(FileSystem& files, const std::string& path) {
  if (!path.ends_with(kShardSuffix)) return std::string("the template's default");
  PERCHERON_ASSIGN_OR_RETURN(const TokenDataset data, open_shard(files, path));
  return thinking_of_dataset(data);
}

Result<Tokenizer*> LazyTokenizer::get() {
  if (!tokenizer_) {
    PERCHERON_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::start(model_));
  }
  return tokenizer_.get();
}

Result<std::vector<Prompt>> read_prompts(FileSystem& files, const std::string& path,
                                         LazyTokenizer& tokenizer, int64_t limit) {
  PERCHERON_ASSIGN_OR_RETURN(std::vector<Prompt> prompts,
                             path.ends_with(kShardSuffix)
                                 ? prompts_of_shard(files, path, limit)
                                 : prompts_of_jsonl(files, path, tokenizer, limit));
  if (prompts.empty()) return invalid_argument(fmt::format("{} has no prompt", path));
  return prompts;
}

}  // namespace percheron

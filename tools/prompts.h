#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/token_shard.h"
#include "tools/tokenizer.h"

namespace percheron {

/// Starts the tokenizer of a model when it is first needed.
class LazyTokenizer {
 public:
  explicit LazyTokenizer(std::string model) : model_(std::move(model)) {}
  Result<Tokenizer*> get();

 private:
  std::string model_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

/// The rows of a data set up to their first supervised token. limit 0 = all.
Result<std::vector<std::vector<int32_t>>> prompts_of_dataset(const TokenDataset& data,
                                                             int64_t limit);

/// How the thoughts of a data set's prompts were rendered, in words: acceptance differs between
/// thinking and not (dflash#133).
std::string thinking_of_dataset(const TokenDataset& data);

/// The same of a file for read_prompts. Errors as there.
Result<std::string> thinking_of_prompts(FileSystem& files, const std::string& path);

/// Prompts to decode, as token ids with the generation prompt at their end. `path` is a token shard
/// (the rows up to their first supervised token) or JSONL with, per row, `turns` (the first one is
/// asked), `conversations` or `messages` (up to the last answer) or `prompt`, which the tokenizer's
/// process reads as `prepare` reads chats. Errors name file and line. limit 0 = all.
Result<std::vector<std::vector<int32_t>>> read_prompts(FileSystem& files, const std::string& path,
                                                       LazyTokenizer& tokenizer, int64_t limit);

}  // namespace percheron

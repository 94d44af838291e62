#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/python_environment.h"

namespace percheron {

struct Decoded {
  std::string text;
  std::vector<std::string> pieces;  // one text per id, joining to `text`
};

/// The model's own tokenizer and chat template, in a Python process (Hugging Face tokenizers).
class Tokenizer {
 public:
  /// `model`: a Hugging Face directory with tokenizer.json.
  static Result<std::unique_ptr<Tokenizer>> start(const std::string& model);

  /// One user message, rendered with the generation prompt.
  Result<std::vector<int32_t>> encode_user_message(const std::string& text);
  /// A row of a file of prompts, rendered with the generation prompt: `prompt`, the first of
  /// `turns`, or `conversations` or `messages` up to the last answer.
  Result<std::vector<int32_t>> encode_prompt(const nlohmann::json& row);
  Result<Decoded> decode(std::span<const int32_t> ids);

 private:
  explicit Tokenizer(ChildProcess process) : process_(std::move(process)) {}
  Result<std::string> ask(const std::string& request);

  ChildProcess process_;
};

}  // namespace percheron

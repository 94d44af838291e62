#pragma once

#include <string>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// Compares the chat template that token shards were rendered with, by their passport's
/// `template_hash`, with the template of the target's directory (chat_template.jinja, else
/// chat_template of tokenizer_config.json, with the special tokens that it may name): a server
/// would feed other prompts than the drafter was trained on. `data` names the shards in messages.
/// kInvalidArgument, naming both hashes, where they differ, and where tokenizer_config.json is no
/// JSON. What could not be compared is said in one line, which is empty otherwise: the directory
/// may have no template, and shards from elsewhere may carry a hash of another kind.
Result<std::string> check_template(FileSystem& files, const std::string& target,
                                   const std::string& template_hash, const std::string& data);

}  // namespace percheron

#pragma once

#include <string>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// Compares the tokenizer that token shards were prepared with, by their passport's
/// `tokenizer_hash`, with the tokenizer.json of the target's directory: other ids would train a
/// drafter on text that the target never meant. `data` names the shards in messages.
/// kInvalidArgument, naming both, where they differ and where the file is no JSON. What could not
/// be compared is said in one line, which is empty otherwise: the directory may have no such file,
/// and shards from elsewhere may carry a hash of another kind.
Result<std::string> check_tokenizer(FileSystem& files, const std::string& target,
                                    const std::string& tokenizer_hash, const std::string& data);

}  // namespace percheron

#include "actors/tokenizer_check.h"

#include <fmt/format.h>

#include <memory>
#include <string_view>

#include "base/json.h"
#include "data/sha256.h"

namespace percheron {

Result<std::string> check_tokenizer(FileSystem& files, const std::string& target,
                                    const std::string& tokenizer_hash, const std::string& data) {
  const std::string path = join_path(target, "tokenizer.json");
  if (!files.exists(path)) {
    return fmt::format(
        "{} does not exist: that {} was prepared for this target is not checked, and a report "
        "will show no answers",
        path, data);
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, files.map(path));
  const std::string own = sha256_hex(file->bytes());
  if (own == tokenizer_hash) return std::string();
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              file->bytes().size());
  PERCHERON_RETURN_IF_ERROR(parse_json(text, path).status());
  if (!is_sha256_hex(tokenizer_hash)) {
    return fmt::format(
        "the tokenizer_hash of {} is '{}', no SHA-256 of a tokenizer.json: that it was prepared "
        "for this target is not checked",
        data, tokenizer_hash);
  }
  return invalid_argument(fmt::format(
      "{} was prepared with another tokenizer: its tokenizer_hash is {}, but the SHA-256 of {} is "
      "{}; prepare it again with this model (percheron prepare), or give the target.path that it "
      "was prepared for",
      data, tokenizer_hash, path, own));
}

}  // namespace percheron

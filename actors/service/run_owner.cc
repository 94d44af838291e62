#include "actors/service/run_owner.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

namespace percheron {
namespace {

std::string path_of(const std::string& output) { return join_path(output, ".owner"); }

}  // namespace

// One line: "GENERATION NODE".
Result<std::optional<RunOwner>> read_run_owner(FileSystem& files, const std::string& output) {
  const std::string path = path_of(output);
  if (!files.exists(path)) return std::optional<RunOwner>();
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
  const std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  RunOwner owner;
  const auto [end, error] =
      std::from_chars(line.data(), line.data() + line.size(), owner.generation);
  if (error != std::errc() || end == line.data() + line.size() || *end != ' ') {
    return data_loss(path + " does not say who has the run: remove it when no node has it");
  }
  owner.node = std::string(line.substr(static_cast<size_t>(end - line.data()) + 1));
  return std::optional(owner);
}

Result<bool> own_run(FileSystem& files, const std::string& output, const RunOwner& self) {
  PERCHERON_RETURN_IF_ERROR(files.create_directories(output));
  PERCHERON_RETURN_IF_ERROR(check_run_owner(files, output, self));
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<RunOwner> before, read_run_owner(files, output));
  if (before && before->generation == self.generation) return false;
  PERCHERON_RETURN_IF_ERROR(write_text_atomically(
      files, path_of(output), fmt::format("{} {}\n", self.generation, self.node)));
  return true;
}

Status check_run_owner(FileSystem& files, const std::string& output, const RunOwner& self) {
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<RunOwner> owner, read_run_owner(files, output));
  if (!owner || owner->generation < self.generation) return ok_status();
  if (owner->generation == self.generation && owner->node == self.node) return ok_status();
  return failed_precondition(fmt::format("the run is on node {} now", owner->node));
}

}  // namespace percheron

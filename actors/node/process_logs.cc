#include "actors/node/process_logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace percheron {
namespace {

// No run's name begins with a dot.
constexpr std::string_view kSetAside = ".removed-";

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
  return number;
}

}  // namespace

std::string ProcessLogs::directory_of(const std::string& run) const {
  return join_path(directory_, run);
}

std::string ProcessLogs::path_of(const std::string& run, const std::string& process) const {
  std::string name = process;
  std::replace(name.begin(), name.end(), ':', '-');
  return join_path(directory_of(run), name + ".log");
}

// In the order in which they were written.
Result<std::vector<ProcessLogs::OldFile>> ProcessLogs::old_files(const std::string& path) const {
  const size_t slash = path.rfind('/');
  const std::string directory = path.substr(0, slash), prefix = path.substr(slash + 1) + ".";
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.list(directory));
  std::vector<OldFile> old;
  for (const std::string& name : names) {
    if (!name.starts_with(prefix)) continue;
    const std::optional<uint64_t> begin =
        parse_number(std::string_view(name).substr(prefix.size()));
    if (!begin) continue;  // Somebody else's.
    OldFile file{join_path(directory, name), *begin, 0};
    PERCHERON_ASSIGN_OR_RETURN(file.bytes, files_.file_size(file.path));
    old.push_back(std::move(file));
  }
  std::sort(old.begin(), old.end(),
            [](const OldFile& a, const OldFile& b) { return a.begin < b.begin; });
  return old;
}

Result<bool> ProcessLogs::rotate_if_full(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const Result<uint64_t> bytes = files_.file_size(path);
  // It is not there between a rotation and the process's next open.
  if (!bytes.ok() && bytes.status().code() == StatusCode::kNotFound) return false;
  PERCHERON_RETURN_IF_ERROR(bytes.status());
  if (*bytes < limits_.bytes_max) return false;
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<OldFile> old, old_files(path));
  // Before the rename, after which the process must be told whatever happens.
  const auto kept = static_cast<size_t>(limits_.files_max - 2);
  for (size_t i = 0; i + kept < old.size(); ++i) {
    PERCHERON_RETURN_IF_ERROR(files_.remove_all(old[i].path));
  }
  // What was written to the last file between its renaming and the process's next open counts.
  const uint64_t begin = old.empty() ? 0 : old.back().begin + old.back().bytes;
  PERCHERON_RETURN_IF_ERROR(files_.rename(path, fmt::format("{}.{}", path, begin)));
  ++rotations_;
  return true;
}

Result<LogPart> ProcessLogs::read(const std::string& path, uint64_t offset,
                                  size_t bytes_max) const {
  const std::lock_guard lock(mutex_);
  PERCHERON_ASSIGN_OR_RETURN(std::vector<OldFile> all, old_files(path));
  const Result<uint64_t> bytes = files_.file_size(path);
  if (bytes.ok()) {
    all.push_back({path, all.empty() ? 0 : all.back().begin + all.back().bytes, *bytes});
  } else if (all.empty() || bytes.status().code() != StatusCode::kNotFound) {
    return bytes.status();
  }
  LogPart part;
  part.begin = std::clamp(offset, all.front().begin, all.back().begin + all.back().bytes);
  for (const OldFile& file : all) {
    if (part.begin < file.begin || part.begin - file.begin >= file.bytes) continue;
    PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> mapped, files_.map(file.path));
    const std::span<const std::byte> rest = mapped->bytes().subspan(part.begin - file.begin);
    part.text.resize(std::min(rest.size(), bytes_max));
    std::memcpy(part.text.data(), rest.data(), part.text.size());
    break;
  }
  return part;
}

Result<std::vector<std::string>> ProcessLogs::runs() const {
  if (!files_.exists(directory_)) return std::vector<std::string>();
  PERCHERON_ASSIGN_OR_RETURN(std::vector<std::string> names, files_.list(directory_));
  std::erase_if(names, [this](const std::string& name) {
    return name.starts_with('.') || !files_.list(directory_of(name)).ok();
  });
  return names;
}

Status ProcessLogs::set_aside(const std::string& run) {
  if (!files_.exists(directory_of(run))) return ok_status();
  const std::string aside = join_path(directory_, std::string(kSetAside) + run);
  PERCHERON_RETURN_IF_ERROR(files_.remove_all(aside));
  return files_.rename(directory_of(run), aside);
}

Status ProcessLogs::remove_set_aside() {
  if (!files_.exists(directory_)) return ok_status();
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.list(directory_));
  for (const std::string& name : names) {
    if (!name.starts_with(kSetAside)) continue;
    PERCHERON_RETURN_IF_ERROR(files_.remove_all(join_path(directory_, name)));
  }
  return ok_status();
}

}  // namespace percheron

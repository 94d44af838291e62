#include "base/file_system.h"

namespace percheron {
namespace {

Status write_and_sync(WritableFile& file, std::string_view text) {
  PERCHERON_RETURN_IF_ERROR(file.append(std::as_bytes(std::span(text))));
  PERCHERON_RETURN_IF_ERROR(file.sync());
  return file.close();
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Status write_text_atomically(FileSystem& files, const std::string& path, std::string_view text) {
  const std::string temporary = path + ".new";
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.create(temporary));
  Status status = write_and_sync(*file, text);
  if (status.ok()) status = files.rename(temporary, path);
  if (!status.ok()) {
    file.reset();
    // The write's own error is the one to report.
    [[maybe_unused]] const Status ignored = files.remove_all(temporary);
    return status;
  }
  return files.sync_directory(parent_of(path));
}

std::string join_path(std::string_view directory, std::string_view name) {
  while (directory.size() > 1 && directory.back() == '/') directory.remove_suffix(1);
  while (!name.empty() && name.front() == '/') name.remove_prefix(1);
  std::string path(directory);
  if (!path.empty() && path.back() != '/') path += '/';
  return path += name;
}

}  // namespace percheron

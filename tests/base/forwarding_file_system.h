#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file_system.h"

namespace percheron {

/// The operating system's files; a test overrides what is to fail.
class ForwardingFileSystem : public FileSystem {
 public:
  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    return files_.create(path);
  }
  Result<std::unique_ptr<WritableFile>> create_new(const std::string& path) override {
    return files_.create_new(path);
  }
  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) override {
    return files_.open_append(path);
  }
  Result<std::unique_ptr<MappedFile>> map(const std::string& path) override {
    return files_.map(path);
  }
  Result<std::string> read_text(const std::string& path) override { return files_.read_text(path); }
  Result<uint64_t> file_size(const std::string& path) override { return files_.file_size(path); }
  bool exists(const std::string& path) override { return files_.exists(path); }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    return files_.list(directory);
  }
  Status create_directories(const std::string& path) override {
    return files_.create_directories(path);
  }
  Status rename(const std::string& from, const std::string& to) override {
    return files_.rename(from, to);
  }
  Status remove_all(const std::string& path) override { return files_.remove_all(path); }
  Status sync_directory(const std::string& path) override { return files_.sync_directory(path); }
  Status replace_symlink(const std::string& target, const std::string& link) override {
    return files_.replace_symlink(target, link);
  }
  Result<std::string> read_symlink(const std::string& link) override {
    return files_.read_symlink(link);
  }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    return files_.lock(path);
  }
  Result<uint64_t> free_bytes(const std::string& path) override { return files_.free_bytes(path); }

 private:
  FileSystem& files_ = system_files();
};

}  // namespace percheron

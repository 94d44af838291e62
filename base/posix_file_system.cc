#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/file_system.h"

namespace percheron {
namespace {

StatusCode code_of(int error) {
  switch (error) {
    case ENOENT: return StatusCode::kNotFound;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return StatusCode::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
    case EEXIST:
    case ENOTEMPTY:
    case EISDIR:
    case ENOTDIR: return StatusCode::kFailedPrecondition;
    case EINVAL:
    case ELOOP:
    case ENAMETOOLONG: return StatusCode::kInvalidArgument;
    default: return StatusCode::kInternal;
  }
}

Status system_error(std::string_view action, const std::string& path, int error) {
  return Status(code_of(error), "cannot " + std::string(action) + " " + path + ": " +
                                    std::generic_category().message(error));
}

Status last_error(std::string_view action, const std::string& path) {
  return system_error(action, path, errno);
}

// Calls `call` again as long as a signal interrupts it.
template <class Call>
auto retry_interrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : fd_(retry_interrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0644); })) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  // Not retried: Linux frees the descriptor even when close() is interrupted.
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, Descriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  Status append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written =
          retry_interrupted([&] { return ::write(file_.fd(), bytes.data(), bytes.size()); });
      if (written < 0) return last_error("write to", path_);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return ok_status();
  }

  Status sync() override {
    if (retry_interrupted([&] { return ::fsync(file_.fd()); }) < 0)
      return last_error("sync", path_);
    return ok_status();
  }

  Status close() override {
    if (!file_.ok()) return ok_status();
    if (file_.close() < 0 && errno != EINTR) return last_error("close", path_);
    return ok_status();
  }

 private:
  const std::string path_;
  Descriptor file_;
};

class PosixMappedFile final : public MappedFile {
 public:
  PosixMappedFile(void* data, size_t size) : data_(data), size_(size) {}
  ~PosixMappedFile() override {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  PosixMappedFile(const PosixMappedFile&) = delete;
  PosixMappedFile& operator=(const PosixMappedFile&) = delete;

  std::span<const std::byte> bytes() const override {
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  void* data_;  // Null for an empty file.
  size_t size_;
};

class PosixFileLock final : public FileLock {
 public:
  explicit PosixFileLock(Descriptor file) : file_(std::move(file)) {}

 private:
  Descriptor file_;
};

// "process 4711 on node3", for others who want the lock.
std::string this_process() {
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return "process " + std::to_string(::getpid()) + " on " + host;
}

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    return open_to_write(path, O_WRONLY | O_CREAT | O_TRUNC, "create");
  }

  Result<std::unique_ptr<WritableFile>> create_new(const std::string& path) override {
    return open_to_write(path, O_WRONLY | O_CREAT | O_EXCL, "create");
  }

  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) override {
    return open_to_write(path, O_WRONLY | O_CREAT | O_APPEND, "open");
  }

  Result<std::unique_ptr<MappedFile>> map(const std::string& path) override {
    const Descriptor file(path, O_RDONLY);
    if (!file.ok()) return last_error("open", path);
    PERCHERON_ASSIGN_OR_RETURN(const uint64_t size, regular_size(file, path));
    void* data = nullptr;
    if (size > 0) {
      data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
      if (data == MAP_FAILED) return last_error("map", path);
    }
    return std::unique_ptr<MappedFile>(std::make_unique<PosixMappedFile>(data, size));
  }

  Result<std::string> read_text(const std::string& path) override {
    const Descriptor file(path, O_RDONLY);
    if (!file.ok()) return last_error("open", path);
    // Files of /proc and pipes have no size, so the end is where read() says it is.
    std::string text;
    char buffer[1 << 14];
    for (;;) {
      const ssize_t count =
          retry_interrupted([&] { return ::read(file.fd(), buffer, sizeof buffer); });
      if (count < 0) return last_error("read", path);
      if (count == 0) return text;
      text.append(buffer, static_cast<size_t>(count));
    }
  }

  Result<uint64_t> file_size(const std::string& path) override {
    const Descriptor file(path, O_RDONLY);
    if (!file.ok()) return last_error("open", path);
    return regular_size(file, path);
  }

  bool exists(const std::string& path) override { return ::access(path.c_str(), F_OK) == 0; }

  Result<std::vector<std::string>> list(const std::string& directory) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
    if (stream == nullptr) return last_error("list", directory);
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(stream.get());
      if (entry == nullptr) break;
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    if (errno != 0) return last_error("list", directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status create_directories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return system_error("create directory", path, error.value());
    return ok_status();
  }

  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) < 0) return last_error("rename " + from + " to", to);
    return ok_status();
  }

  Status remove_all(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return system_error("remove", path, error.value());
    return ok_status();
  }

  Status sync_directory(const std::string& path) override {
    const Descriptor directory(path, O_RDONLY | O_DIRECTORY);
    if (!directory.ok()) return last_error("open directory", path);
    if (retry_interrupted([&] { return ::fsync(directory.fd()); }) < 0) {
      return last_error("sync directory", path);
    }
    return ok_status();
  }

  Status replace_symlink(const std::string& target, const std::string& link) override {
    const std::string temporary = link + ".new";
    if (::unlink(temporary.c_str()) < 0 && errno != ENOENT) return last_error("remove", temporary);
    if (::symlink(target.c_str(), temporary.c_str()) < 0)
      return last_error("create link", temporary);
    return rename(temporary, link);
  }

  Result<std::string> read_symlink(const std::string& link) override {
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(link, error);
    if (error) return system_error("read link", link, error.value());
    return target.string();
  }

  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    Descriptor file(path, O_RDWR | O_CREAT);
    if (!file.ok()) return last_error("open", path);
    if (retry_interrupted([&] { return ::flock(file.fd(), LOCK_EX | LOCK_NB); }) < 0) {
      if (errno != EWOULDBLOCK) return last_error("lock", path);
      const Result<std::string> holder = read_text(path);
      return unavailable(path + " is locked by " +
                         (holder.ok() && !holder->empty() ? *holder : "another process"));
    }
    // Only for messages of others: a disk that is full now takes nothing from the lock.
    const std::string holder = this_process();
    if (::ftruncate(file.fd(), 0) == 0) {
      [[maybe_unused]] const ssize_t written =
          retry_interrupted([&] { return ::write(file.fd(), holder.data(), holder.size()); });
    }
    return std::unique_ptr<FileLock>(std::make_unique<PosixFileLock>(std::move(file)));
  }

  Result<uint64_t> free_bytes(const std::string& path) override {
    struct statvfs info;
    if (::statvfs(path.c_str(), &info) < 0) return last_error("ask free space of", path);
    return uint64_t{info.f_bavail} * info.f_frsize;
  }

 private:
  static Result<std::unique_ptr<WritableFile>> open_to_write(const std::string& path, int flags,
                                                             std::string_view action) {
    Descriptor file(path, flags);
    if (!file.ok()) return last_error(action, path);
    return std::unique_ptr<WritableFile>(
        std::make_unique<PosixWritableFile>(path, std::move(file)));
  }

  static Result<uint64_t> regular_size(const Descriptor& file, const std::string& path) {
    struct stat info;
    if (::fstat(file.fd(), &info) < 0) return last_error("ask size of", path);
    if (!S_ISREG(info.st_mode)) return failed_precondition(path + " is not a regular file");
    return static_cast<uint64_t>(info.st_size);
  }
};

}  // namespace

FileSystem& system_files() {
  static PosixFileSystem files;
  return files;
}

}  // namespace percheron

#include <fmt/format.h>

#include <cctype>
#include <thread>

#include "kernels/rendezvous.h"

namespace percheron {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{2};

bool is_key(std::string_view key) {
  if (key.empty() || key.front() == '.') return false;
  for (const char c : key) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.') {
      return false;
    }
  }
  return true;
}

class DirectoryRendezvous final : public RendezvousStore {
 public:
  DirectoryRendezvous(FileSystem& files, std::string directory, const Clock& clock)
      : files_(files), directory_(std::move(directory)), clock_(clock) {}

  Status set(const std::string& key, std::string_view value) override {
    PERCHERON_ASSIGN_OR_RETURN(const std::string path, path_of(key));
    PERCHERON_RETURN_IF_ERROR(files_.create_directories(directory_));
    if (files_.exists(path)) {
      return failed_precondition(fmt::format("rendezvous key '{}' has a value: {}", key, path));
    }
    return write_text_atomically(files_, path, value);  // Nobody reads a part of it.
  }

  Result<std::string> get(const std::string& key, std::chrono::milliseconds limit) override {
    PERCHERON_ASSIGN_OR_RETURN(const std::string path, path_of(key));
    const int64_t end = clock_.monotonic_ns() + std::chrono::nanoseconds(limit).count();
    for (;;) {
      Result<std::string> value = files_.read_text(path);
      if (value.ok() || value.status().code() != StatusCode::kNotFound) return value;
      if (clock_.monotonic_ns() >= end) {
        return unavailable(fmt::format("nobody set rendezvous key '{}' within {} ms in {}", key,
                                       limit.count(), directory_));
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

 private:
  Result<std::string> path_of(const std::string& key) const {
    if (!is_key(key)) {
      return invalid_argument(fmt::format(
          "rendezvous key '{}' has other characters than letters, digits, '-', '_' and '.'", key));
    }
    return join_path(directory_, key);
  }

  FileSystem& files_;
  const std::string directory_;
  const Clock& clock_;
};

}  // namespace

std::shared_ptr<RendezvousStore> make_directory_rendezvous(FileSystem& files, std::string directory,
                                                           const Clock& clock) {
  return std::make_shared<DirectoryRendezvous>(files, std::move(directory), clock);
}

}  // namespace percheron

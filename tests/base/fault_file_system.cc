#include "tests/base/fault_file_system.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace percheron {
namespace {

constexpr int kLinksMax = 8;

using Bytes = std::vector<std::byte>;
using NodePointer = std::shared_ptr<FaultFileSystem::Node>;
using Entries = std::map<std::string, NodePointer>;

}  // namespace

struct FaultFileSystem::Node {
  explicit Node(Kind kind_in) : kind(kind_in) {}

  const Kind kind;
  // A file's bytes now and as synced. Whoever changes bytes that a mapping shares copies them
  // first.
  std::shared_ptr<Bytes> bytes = std::make_shared<Bytes>();
  std::shared_ptr<const Bytes> durable_bytes = bytes;
  // A directory's entries as synced, then after each change since; the last are those of now.
  std::vector<Entries> entries_history = std::vector<Entries>(1);
  std::string target;  // of a symlink

  const Entries& entries() const { return entries_history.back(); }
  // Calls `change` on the entries.
  template <class Change>
  void change_entries(Change change) {
    Entries changed = entries();
    change(changed);
    entries_history.push_back(std::move(changed));
  }
};

namespace {

Status error_on(std::string_view action, const std::string& path, const Status& status) {
  return status.with_context("cannot " + std::string(action) + " " + path);
}

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    PERCHERON_CHECK(part != "..", "paths with .. are not simulated");
    if (!part.empty() && part != ".") parts.emplace_back(part);
  }
  return parts;
}

class MemoryMappedFile final : public MappedFile {
 public:
  explicit MemoryMappedFile(std::shared_ptr<const Bytes> bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return *bytes_; }

 private:
  std::shared_ptr<const Bytes> bytes_;
};

class FaultWritableFile final : public WritableFile {
 public:
  FaultWritableFile(FaultFileSystem& files, NodePointer node, std::string path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {}

  Status append(std::span<const std::byte> bytes) override {
    return files_.append_to(*node_, path_, bytes);
  }
  Status sync() override { return files_.sync_file(*node_, path_); }
  Status close() override { return ok_status(); }

 private:
  FaultFileSystem& files_;
  const NodePointer node_;
  const std::string path_;
};

class FaultFileLock final : public FileLock {
 public:
  FaultFileLock(FaultFileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  ~FaultFileLock() override { files_.unlock(path_); }
  FaultFileLock(const FaultFileLock&) = delete;
  FaultFileLock& operator=(const FaultFileLock&) = delete;

 private:
  FaultFileSystem& files_;
  const std::string path_;
};

// Leaves of the tree below `node` what `choose_entries` and `choose_bytes` pick.
template <class ChooseEntries, class ChooseBytes>
void settle(FaultFileSystem::Node& node, ChooseEntries choose_entries, ChooseBytes choose_bytes) {
  node.bytes = std::make_shared<Bytes>(choose_bytes(node));
  node.durable_bytes = node.bytes;
  Entries entries = choose_entries(node);
  node.entries_history.assign(1, entries);
  for (const auto& [name, child] : entries) settle(*child, choose_entries, choose_bytes);
}

// The synced bytes, or a beginning of those written that keeps the synced ones where it can.
Bytes some_bytes(const FaultFileSystem::Node& node, Random& random) {
  const Bytes& written = *node.bytes;
  const Bytes& durable = *node.durable_bytes;
  const bool appended = written.size() >= durable.size() &&
                        std::equal(durable.begin(), durable.end(), written.begin());
  if (!appended && random.below(2) == 0) return durable;
  const size_t least = appended ? durable.size() : 0;
  const size_t kept = least + random.below(written.size() - least + 1);
  return Bytes(written.begin(), written.begin() + static_cast<std::ptrdiff_t>(kept));
}

}  // namespace

FaultFileSystem::FaultFileSystem() : root_(std::make_shared<Node>(Kind::kDirectory)) {}
FaultFileSystem::~FaultFileSystem() = default;

void FaultFileSystem::fill_disk_after(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  disk_bytes_left_ = bytes;
}

void FaultFileSystem::free_disk() {
  const std::lock_guard lock(mutex_);
  disk_bytes_left_.reset();
}

void FaultFileSystem::fail_operation(uint64_t nth, Status status) {
  PERCHERON_CHECK(nth > 0 && !status.ok(),
                  "the next operation is the first, and it needs an error");
  const std::lock_guard lock(mutex_);
  failing_operation_ = operation_count_ + nth;
  failure_ = std::move(status);
}

void FaultFileSystem::cut_power_at_operation(uint64_t nth) {
  PERCHERON_CHECK(nth > 0, "the next operation is the first");
  const std::lock_guard lock(mutex_);
  power_cut_operation_ = operation_count_ + nth;
}

uint64_t FaultFileSystem::operation_count() const {
  const std::lock_guard lock(mutex_);
  return operation_count_;
}

void FaultFileSystem::restart_keeping_synced() {
  const std::lock_guard lock(mutex_);
  power_cut_operation_ = 0;
  settle(
      *root_, [](const Node& node) { return node.entries_history.front(); },
      [](const Node& node) { return *node.durable_bytes; });
}

void FaultFileSystem::restart_keeping_some(uint64_t seed) {
  const std::lock_guard lock(mutex_);
  power_cut_operation_ = 0;
  Random random(seed);
  settle(
      *root_,
      [&](const Node& node) {
        return node.entries_history[random.below(node.entries_history.size())];
      },
      [&](const Node& node) { return some_bytes(node, random); });
}

Status FaultFileSystem::count_operation(const std::string& path) {
  ++operation_count_;
  if (power_cut_operation_ != 0 && operation_count_ >= power_cut_operation_) {
    return unavailable("the power is off, " + path + " is out of reach");
  }
  if (operation_count_ == failing_operation_) return failure_.with_context(path);
  return ok_status();
}

Result<FaultFileSystem::Place> FaultFileSystem::find(const std::string& path, bool follow_last,
                                                     int links_left) const {
  const std::vector<std::string> parts = parts_of(path);
  Place place{root_, "", root_};
  std::string walked = "/";
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    if (place.node == nullptr) return not_found("no directory " + walked);
    if (place.node->kind != Kind::kDirectory) {
      return failed_precondition(walked + " is not a directory");
    }
    const Entries& entries = place.node->entries();
    const auto found = entries.find(parts[i]);
    place = {place.node, parts[i], found == entries.end() ? nullptr : found->second};
    if (place.node != nullptr && place.node->kind == Kind::kSymlink && (!last || follow_last)) {
      if (links_left == 0) return invalid_argument("too many symbolic links at " + walked);
      const std::string& target = place.node->target;
      const std::string led = target.starts_with('/') ? target : join_path(walked, target);
      PERCHERON_ASSIGN_OR_RETURN(place, find(led, true, links_left - 1));
    }
    walked = join_path(walked, parts[i]);
  }
  return place;
}

Result<NodePointer> FaultFileSystem::existing(const std::string& path, Kind kind) const {
  PERCHERON_ASSIGN_OR_RETURN(const Place place, find(path, true, kLinksMax));
  if (place.node == nullptr) return not_found("no such file or directory");
  if (place.node->kind == kind) return place.node;
  return failed_precondition(kind == Kind::kFile ? "it is not a regular file"
                                                 : "it is not a directory");
}

Result<std::unique_ptr<WritableFile>> FaultFileSystem::open_to_write(const std::string& path,
                                                                     Contents contents) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(path));
  Result<Place> place = find(path, true, kLinksMax);
  if (!place.ok()) return error_on("open", path, place.status());
  if (place->node == nullptr) {
    place->node = std::make_shared<Node>(Kind::kFile);
    place->directory->change_entries([&](Entries& e) { e[place->name] = place->node; });
  } else if (place->node->kind != Kind::kFile) {
    return error_on("open", path, failed_precondition("it is not a regular file"));
  } else if (contents == Contents::kNone) {
    return error_on("create", path, failed_precondition("there is such a file"));
  } else if (contents == Contents::kTruncated) {
    place->node->bytes = std::make_shared<Bytes>();
  }
  return std::unique_ptr<WritableFile>(
      std::make_unique<FaultWritableFile>(*this, place->node, path));
}

Result<std::unique_ptr<WritableFile>> FaultFileSystem::create(const std::string& path) {
  return open_to_write(path, Contents::kTruncated);
}

Result<std::unique_ptr<WritableFile>> FaultFileSystem::create_new(const std::string& path) {
  return open_to_write(path, Contents::kNone);
}

Result<std::unique_ptr<WritableFile>> FaultFileSystem::open_append(const std::string& path) {
  return open_to_write(path, Contents::kKept);
}

Status FaultFileSystem::append_to(Node& file, const std::string& path,
                                  std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(path));
  const uint64_t fitting =
      std::min<uint64_t>(bytes.size(), disk_bytes_left_.value_or(bytes.size()));
  if (disk_bytes_left_) *disk_bytes_left_ -= fitting;
  if (file.bytes.use_count() > 1) file.bytes = std::make_shared<Bytes>(*file.bytes);
  file.bytes->insert(file.bytes->end(), bytes.begin(),
                     bytes.begin() + static_cast<std::ptrdiff_t>(fitting));
  if (fitting < bytes.size()) {
    return error_on("write to", path, resource_exhausted("no space left on device"));
  }
  return ok_status();
}

Status FaultFileSystem::sync_file(Node& file, const std::string& path) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(path));
  file.durable_bytes = file.bytes;
  return ok_status();
}

Result<std::unique_ptr<MappedFile>> FaultFileSystem::map(const std::string& path) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(path));
  const Result<NodePointer> file = existing(path, Kind::kFile);
  if (!file.ok()) return error_on("map", path, file.status());
  return std::unique_ptr<MappedFile>(std::make_unique<MemoryMappedFile>((*file)->bytes));
}

Result<std::string> FaultFileSystem::read_text(const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, map(path));
  const std::span<const std::byte> bytes = file->bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<uint64_t> FaultFileSystem::file_size(const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, map(path));
  return uint64_t{file->bytes().size()};
}

bool FaultFileSystem::exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const Result<Place> place = find(path, true, kLinksMax);
  return place.ok() && place->node != nullptr;
}

Result<std::vector<std::string>> FaultFileSystem::list(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(directory));
  const Result<NodePointer> node = existing(directory, Kind::kDirectory);
  if (!node.ok()) return error_on("list", directory, node.status());
  std::vector<std::string> names;
  for (const auto& [name, child] : (*node)->entries()) names.push_back(name);
  return names;
}

Status FaultFileSystem::create_directories(const std::string& path) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(path));
  std::string walked = "/";
  for (const std::string& part : parts_of(path)) {
    walked = join_path(walked, part);
    Result<Place> place = find(walked, true, kLinksMax);
    if (!place.ok()) return error_on("create directory", path, place.status());
    if (place->node != nullptr && place->node->kind != Kind::kDirectory) {
      return error_on("create directory", path, failed_precondition(walked + " is a file"));
    }
    if (place->node != nullptr) continue;
    place->directory->change_entries(
        [&](Entries& e) { e[place->name] = std::make_shared<Node>(Kind::kDirectory); });
  }
  return ok_status();
}

Status FaultFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(from));
  const Result<Place> old_place = find(from, false, kLinksMax);
  const Result<Place> new_place = find(to, false, kLinksMax);
  for (const Result<Place>* place : {&old_place, &new_place}) {
    if (!place->ok()) return error_on("rename " + from + " to", to, place->status());
  }
  if (old_place->node == nullptr) {
    return error_on("rename " + from + " to", to, not_found("no such file or directory"));
  }
  if (new_place->node != nullptr && new_place->node->kind == Kind::kDirectory &&
      !new_place->node->entries().empty()) {
    return error_on("rename " + from + " to", to, failed_precondition("it is not empty"));
  }
  // Within one directory a rename is atomic; between two, each has its own history.
  const auto take = [&](Entries& e) { e.erase(old_place->name); };
  const auto put = [&](Entries& e) { e[new_place->name] = old_place->node; };
  if (old_place->directory == new_place->directory) {
    old_place->directory->change_entries([&](Entries& e) { take(e), put(e); });
  } else {
    new_place->directory->change_entries(put);
    old_place->directory->change_entries(take);
  }
  return ok_status();
}

Status FaultFileSystem::remove_all(const std::string& path) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(path));
  const Result<Place> place = find(path, false, kLinksMax);
  if (!place.ok() && place.status().code() != StatusCode::kNotFound) {
    return error_on("remove", path, place.status());
  }
  if (!place.ok() || place->node == nullptr) return ok_status();
  place->directory->change_entries([&](Entries& e) { e.erase(place->name); });
  return ok_status();
}

Status FaultFileSystem::sync_directory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(path));
  const Result<NodePointer> node = existing(path, Kind::kDirectory);
  if (!node.ok()) return error_on("sync directory", path, node.status());
  std::vector<Entries>& history = (*node)->entries_history;
  history.erase(history.begin(), history.end() - 1);
  return ok_status();
}

Status FaultFileSystem::replace_symlink(const std::string& target, const std::string& link) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(link));
  const Result<Place> place = find(link, false, kLinksMax);
  if (!place.ok()) return error_on("create link", link, place.status());
  const auto node = std::make_shared<Node>(Kind::kSymlink);
  node->target = target;
  place->directory->change_entries([&](Entries& e) { e[place->name] = node; });
  return ok_status();
}

Result<std::string> FaultFileSystem::read_symlink(const std::string& link) {
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(link));
  const Result<Place> place = find(link, false, kLinksMax);
  if (!place.ok()) return error_on("read link", link, place.status());
  if (place->node == nullptr) return error_on("read link", link, not_found("no such file"));
  if (place->node->kind != Kind::kSymlink) {
    return error_on("read link", link, invalid_argument("it is not a symbolic link"));
  }
  return place->node->target;
}

Result<std::unique_ptr<FileLock>> FaultFileSystem::lock(const std::string& path) {
  PERCHERON_RETURN_IF_ERROR(open_to_write(path, Contents::kKept).status());
  const std::lock_guard lock(mutex_);
  if (!locks_.insert(path).second) return unavailable(path + " is locked by this process");
  return std::unique_ptr<FileLock>(std::make_unique<FaultFileLock>(*this, path));
}

void FaultFileSystem::unlock(const std::string& path) {
  const std::lock_guard lock(mutex_);
  locks_.erase(path);
}

Result<uint64_t> FaultFileSystem::free_bytes(const std::string& path) {
  constexpr uint64_t kDiskBytes = uint64_t{1} << 40;
  const std::lock_guard lock(mutex_);
  PERCHERON_RETURN_IF_ERROR(count_operation(path));
  return disk_bytes_left_.value_or(kDiskBytes);
}

}  // namespace percheron

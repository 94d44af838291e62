#include "data/region_file.h"

#include <utility>

namespace percheron {
namespace {

class RegionBytes final : public MappedFile {
 public:
  RegionBytes(std::shared_ptr<const SharedRegion> region, uint64_t bytes)
      : region_(std::move(region)), bytes_(bytes) {}
  std::span<const std::byte> bytes() const override { return region_->bytes().first(bytes_); }

 private:
  const std::shared_ptr<const SharedRegion> region_;
  const uint64_t bytes_;
};

class RegionFile final : public FileSystem {
 public:
  using Text = std::string;
  using Writable = std::unique_ptr<WritableFile>;

  RegionFile(std::shared_ptr<const SharedRegion> region, uint64_t bytes)
      : region_(std::move(region)), bytes_(bytes) {}

  Result<std::unique_ptr<MappedFile>> map(const Text&) override {
    return std::unique_ptr<MappedFile>(std::make_unique<RegionBytes>(region_, bytes_));
  }
  Result<uint64_t> file_size(const Text&) override { return bytes_; }
  bool exists(const Text&) override { return true; }

  Result<Writable> create(const Text&) override { return refused(); }
  Result<Writable> create_new(const Text&) override { return refused(); }
  Result<Writable> open_append(const Text&) override { return refused(); }
  Result<Text> read_text(const Text&) override { return refused(); }
  Result<std::vector<Text>> list(const Text&) override { return refused(); }
  Status create_directories(const Text&) override { return refused(); }
  Status rename(const Text&, const Text&) override { return refused(); }
  Status remove_all(const Text&) override { return refused(); }
  Status sync_directory(const Text&) override { return refused(); }
  Status replace_symlink(const Text&, const Text&) override { return refused(); }
  Result<Text> read_symlink(const Text&) override { return refused(); }
  Result<std::unique_ptr<FileLock>> lock(const Text&) override { return refused(); }
  Result<uint64_t> free_bytes(const Text&) override { return refused(); }

 private:
  static Status refused() {
    return failed_precondition("shared memory holds one file, which can only be mapped");
  }

  const std::shared_ptr<const SharedRegion> region_;
  const uint64_t bytes_;
};

}  // namespace

std::unique_ptr<FileSystem> region_file(std::shared_ptr<const SharedRegion> region,
                                        uint64_t bytes) {
  return std::make_unique<RegionFile>(std::move(region), bytes);
}

}  // namespace percheron

#include "data/feature_region.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/hash.h"
#include "data/feature_block.h"

namespace percheron {

std::string path_of(const FileDescriptor& fd) {
  return "/proc/self/fd/" + std::to_string(fd.get());
}

Result<FeatureRegion> write_feature_region(FileSystem& files, const Features& features) {
  FeatureRegion region;
  region.fd = FileDescriptor(memfd_create("features", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!region.fd.valid()) return os_error("make shared memory for features", errno);
  const std::string path = path_of(region.fd);
  PERCHERON_RETURN_IF_ERROR(
      write_feature_block(files, path, features).with_context("shared memory for features"));
  // Nobody may change it from now on: neither this process by mistake nor a reader.
  if (fcntl(region.fd.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return os_error("seal the features' memory", errno);
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> map, files.map(path));
  region.bytes = map->bytes().size();
  region.crc32c = crc32c(map->bytes());
  return region;
}

}  // namespace percheron

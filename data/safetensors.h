#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "kernels/tensor.h"

namespace percheron {

/// A safetensors file, mapped read-only; tensors are views into it and live as long as it does.
/// open() refuses, naming the file and tensor: a header longer than the file or over 100 MB, bad
/// JSON, duplicate names, unknown dtypes, offsets that overlap, leave holes or end outside the
/// file, shapes whose product overflows or disagrees with the byte range, ranks over 4. A tensor at
/// an address that its dtype does not allow is copied to an aligned one. Source: the format's
/// specification, huggingface/safetensors.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(FileSystem& files, const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, ConstTensorView>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
  /// kNotFound names the file and the missing tensor.
  Result<ConstTensorView> tensor(const std::string& name) const;
  /// Also checks dtype and shape; -1 in `shape` matches any extent.
  Result<ConstTensorView> tensor(const std::string& name, DType dtype,
                                 std::span<const int64_t> shape) const;

 private:
  std::string path_;
  std::shared_ptr<MappedFile> file_;
  std::map<std::string, ConstTensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written: host memory, contiguous.
struct NamedTensor {
  std::string name;
  ConstTensorView view;
};

/// Writes the tensors to `path` (created or replaced), synced. The caller renames where readers may
/// look. Wide elements come first, else in the order given, so that every tensor is aligned. A
/// failed write leaves no file. kInvalidArgument for a repeated or reserved name, a strided view,
/// text that is not UTF-8.
Status write_safetensors(FileSystem& files, const std::string& path,
                         std::span<const NamedTensor> tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace percheron

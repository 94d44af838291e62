#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/safetensors.h"
#include "kernels/tensor.h"
#include "model/config.h"

namespace percheron {

/// A tensor that a checkpoint must hold, by its name without the prefixes `model.` and
/// `language_model.`: "layers.0.mlp.up_proj.weight", "embed_tokens.weight", "lm_head.weight".
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

/// Every tensor of a target with this config, in the order of its forward pass. A tied head is
/// none.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

/// The weights of a Hugging Face directory: model.safetensors, or the shards that
/// model.safetensors.index.json names. Files stay mapped; tensors are views into them.
class WeightFiles {
 public:
  /// Errors name the file and the tensor: no safetensors at all (with what lies there instead), an
  /// index that names a missing or foreign file or a tensor that its shard lacks, two tensors of
  /// one name, damaged files.
  static Result<WeightFiles> open(FileSystem& files, const std::string& directory);

  /// Checks that every expected tensor is there, in F32, F16 or BF16 and of its shape, that all
  /// their values are finite, and that a tied head that is stored all the same equals the
  /// embedding. Counts and logs what nobody expects. kInvalidArgument names file, tensor and both
  /// shapes; kDataLoss a tensor with a NaN or infinity. Sets content_hash().
  Status check(const ModelConfig& config);

  /// Of the names, types, shapes and bytes of the expected tensors, however they are sharded.
  const std::string& content_hash() const { return content_hash_; }

  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
  /// A tensor by its name without prefixes; it must be there (see check()).
  ConstTensorView view(const std::string& name) const;

 private:
  struct Entry {
    ConstTensorView view;
    std::string stored_name;
    size_t file = 0;
  };

  Status add_file(FileSystem& files, const std::string& path);
  Status add_shards(FileSystem& files, const std::string& directory, const std::string& index_path);
  std::string where(const Entry& entry) const;
  Status check_tensor(const ExpectedTensor& expected) const;
  Status check_tied_head(const ModelConfig& config) const;

  std::string directory_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Entry> tensors_;  // by name without prefixes
  std::string content_hash_;
};

/// Whether weights are read in this dtype: F32, F16 or BF16.
bool is_weight_dtype(DType dtype);

/// A contiguous F32, F16 or BF16 tensor in host memory, as f32.
std::vector<float> to_floats(const ConstTensorView& view);

}  // namespace percheron

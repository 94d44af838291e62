#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/safetensors.h"
#include "kernels/device.h"
#include "model/drafter.h"
#include "model/drafter_config.h"
#include "model/weights.h"

namespace percheron {

/// A tensor in host memory with its name. bf16 as bits.
struct HostTensor {
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  ConstTensorView view() const { return ConstTensorView(bytes.data(), dtype, shape); }
};

/// Names (our spelling) and shapes of everything that a drafter of this configuration owns on disk:
/// its parameters, and the head where it has one.
std::vector<ExpectedTensor> drafter_tensors(const DrafterConfig& config);

/// A drafter on disk, checked. Tensors are views into the mapped file.
struct DrafterFile {
  DrafterConfig config;
  DrafterLayout layout = DrafterLayout::kOwn;
  std::map<std::string, ConstTensorView> tensors;  // our spelling; f32, bf16 or f16
  std::vector<int32_t> draft_ids;                  // ascending target ids; empty = all
  ConstTensorView embedding;                       // [V, H] where the file has a copy
  std::vector<std::string> skipped;                // the target's own tensors, not read
  SafetensorsFile file;
};

/// Reads DIRECTORY/config.json and DIRECTORY/model.safetensors in any layout of peers. With
/// `target` (may be null) the two must belong together. Errors name file, tensor and both shapes: a
/// missing or unknown tensor, one that is not finite, a fc that is not as wide as the listed layers
/// (speculators#1065), a reduced vocabulary without d2t and t2d (AutoModel#2447).
Result<DrafterFile> read_drafter(FileSystem& files, const std::string& directory,
                                 const ModelConfig* target);

/// Refuses a file whose copy of the embedding is not the target's (TorchSpec#38); ok without a
/// copy. embedding: [V, H] in host memory.
Status check_embedding(const DrafterFile& file, ConstTensorView embedding);

/// A drafter ready to be trained or to draft, with the file's weights.
Result<std::unique_ptr<Drafter>> make_drafter_from_file(Context& context, const DrafterFile& file,
                                                        const TargetParts& target,
                                                        DType compute_dtype);

/// Sets every parameter from `tensors`, host views by name (f32, bf16 or f16), and tells the
/// drafter. Frozen ones may be missing. kInvalidArgument names one that is missing or of another
/// shape.
Status load_parameters(Context& context, Drafter& drafter,
                       const std::map<std::string, ConstTensorView>& tensors);

/// Everything of drafter_tensors() as bf16 in host memory, in our spelling. kDataLoss names a
/// parameter that is not finite.
Result<std::vector<HostTensor>> snapshot_drafter(Context& context, const Drafter& drafter,
                                                 const TargetParts& target);

/// The two files of a drafter's directory.
struct EncodedDrafter {
  std::string config_text;
  std::vector<HostTensor> tensors;
  std::map<std::string, std::string> metadata;  // {"format": "pt"}: older loaders insist on it

  std::vector<NamedTensor> views() const;
};

/// Names and arranges `tensors` (those of drafter_tensors()) as `options.layout` wants, in bf16.
/// `embedding`: the target's [V, H] in host memory, copied bit for bit into layouts that carry it;
/// else unused.
Result<EncodedDrafter> encode_drafter(const DrafterConfig& config, std::vector<HostTensor> tensors,
                                      std::span<const int32_t> draft_ids, ConstTensorView embedding,
                                      const ConfigExport& options);

/// Writes DIRECTORY/config.json and DIRECTORY/model.safetensors, synced. The caller renames.
Status write_drafter(FileSystem& files, const std::string& directory,
                     const EncodedDrafter& drafter);

}  // namespace percheron

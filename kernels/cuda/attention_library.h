#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "kernels/cuda/queue.h"

namespace percheron::cuda {

/// What a library plans causal attention over packed documents by: bf16 q, k, v and out, in place
/// as slices of wider rows. Strides between rows are in elements, those between heads are head_dim.
/// `documents` and `longest` are the most that the plan serves.
struct PackedShape {
  int64_t documents, longest;
  int64_t heads, kv_heads, head_dim;
  int64_t q_stride, k_stride, v_stride, out_stride;
  float scale;

  auto operator<=>(const PackedShape&) const = default;
};

/// The operands for one shape, in device memory. Document d is rows [begin, begin + lengths[d]) of
/// each tensor, begin from its offsets, which are in elements; those past the last document are
/// empty.
struct PackedOperands {
  const void *q, *k, *v;
  void* out;
  const int32_t *q_offsets, *k_offsets, *v_offsets, *out_offsets;  // [documents + 1]
  const int32_t* lengths;                                          // [documents]
  void* workspace;  // AttentionPlan::workspace_bytes, aligned to 256
};

struct AttentionPlan {
  int64_t workspace_bytes = 0;
  std::string kernel;  // which of the library's kernels, for messages and tests
};

/// Causal attention by somebody else's kernels: cuDNN's on a GPU, plain loops in emulation. Used by
/// any thread.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  /// "cuDNN 9.19.0".
  virtual std::string name() const = 0;
  /// Plans for a shape, once: later calls return what is kept. An error says why the library does
  /// not take the shape.
  virtual Result<AttentionPlan> plan(const PackedShape& shape) = 0;
  /// Puts the planned shape's kernel into the queue.
  virtual Status run(Queue& queue, const PackedShape& shape, const PackedOperands& operands) = 0;
};

/// What libpercheron_cudnn.so exports. Built with the plug-in and loaded by it, so that a machine
/// without cuDNN can do without.
using AttentionLibraryAbi = int();
constexpr const char* kAttentionLibraryAbiName = "percheron_attention_library_abi";
/// To be raised whenever what is above changes.
constexpr int kAttentionLibraryAbi = 1;
/// A device that need not be there.
struct PlannedDevice {
  std::string properties_json;  // as cuDNN writes them
  int sm_version;               // compute capability times ten
};
/// Opens the library for the current device; for a given one, to plan for it and run nothing.
using AttentionLibraryOpen = void(const PlannedDevice* device,
                                  Result<std::unique_ptr<AttentionLibrary>>* library);
constexpr const char* kAttentionLibraryOpenName = "percheron_attention_library_open";

/// Loads libpercheron_cudnn.so at `path`, which stays loaded, and opens it for `device`, or for the
/// current one if that is null. The error says in one line what is missing: the file, cuDNN, or the
/// driver.
Result<std::unique_ptr<AttentionLibrary>> load_attention_library(
    const std::string& path, const PlannedDevice* device = nullptr);

}  // namespace percheron::cuda

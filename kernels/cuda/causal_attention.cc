#include "kernels/cuda/causal_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cuda/kernel_stream.h"
#include "kernels/shapes.h"

namespace percheron::cuda {
namespace {

/// Classes of shapes and lines that are remembered: more than a run has, as classes double.
constexpr size_t kChoicesMax = 1024, kLinesMax = 64;
constexpr int64_t kLongestClassMin = 128;
/// Runs of each kernel before the first that counts, and those of which the fastest counts.
constexpr int kWarmUps = 1, kTimedRuns = 3;
constexpr int64_t kWorkspaceAlignment = 256;

/// Why no library takes the operands; empty when it may.
std::string obstacle(const Attention& a) {
  const ConstRows out{a.out.data,    a.out.dtype,      a.out.rows,       a.out.heads,
                      a.out.columns, a.out.row_stride, a.out.head_stride};
  for (const ConstRows& x : {a.q, a.k, a.v, out}) {
    if (x.dtype != DType::kBf16) return "the target does not compute in bf16";
    if (reinterpret_cast<uintptr_t>(x.data) % 16 != 0 || x.row_stride % 8 != 0 ||
        x.head_stride != x.columns) {
      return "rows are not aligned to 16 bytes";
    }
    if (x.rows > std::numeric_limits<int32_t>::max() / x.row_stride) {
      return "the pack has more elements than 32 bits count";
    }
  }
  return "";
}

/// The class of a shape: what differs from pack to pack is rounded up to a power of two.
PackedShape class_of(const Attention& a, const PackedDocuments& documents) {
  const auto ceil = [](int64_t x) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x)));
  };
  return {.documents = ceil(std::max<int64_t>(1, documents.offsets.elements() - 1)),
          .longest = ceil(std::max(kLongestClassMin, documents.longest)),
          .heads = a.q.heads,
          .kv_heads = a.k.heads,
          .head_dim = a.q.columns,
          .q_stride = a.q.row_stride,
          .k_stride = a.k.row_stride,
          .v_stride = a.v.row_stride,
          .out_stride = a.out.row_stride,
          .scale = a.scale};
}

std::string describe(const PackedShape& shape) {
  return fmt::format("{}/{} heads of {}, up to {} documents of up to {} tokens", shape.heads,
                     shape.kv_heads, shape.head_dim, shape.documents, shape.longest);
}

}  // namespace

void CausalAttention::run(Context& context, const Attention& own,
                          const PackedDocuments& documents) {
  Queue& queue = queue_of(context, {});
  if (parts_.wanted == AttentionKernel::kOwn || own.q.rows == 0) return attention(queue, own);
  if (const std::string why = obstacle(own); !why.empty()) {
    const std::lock_guard lock(mutex_);
    tell_once("attention by Percheron's kernel: " + why);
    return attention(queue, own);
  }
  const PackedShape shape = class_of(own, documents);
  const Choice choice = choice_for(context, own, documents, shape);
  if (!choice.library) return attention(queue, own);
  const Status status = run_library(context, own, documents, shape, choice.plan);
  if (status.ok()) return;
  {
    const std::lock_guard lock(mutex_);
    choices_[shape] = Choice();
    tell_once(fmt::format("attention by Percheron's kernel for {}: {}", describe(shape),
                          status.message()));
  }
  attention(queue, own);
}

CausalAttention::Choice CausalAttention::choice_for(Context& context, const Attention& own,
                                                    const PackedDocuments& documents,
                                                    const PackedShape& shape) {
  const std::lock_guard lock(mutex_);
  const auto known = choices_.find(shape);
  if (known != choices_.end()) return known->second;
  if (!has_library()) return Choice();
  if (choices_.size() >= kChoicesMax) {
    tell_once(
        fmt::format("attention by Percheron's kernel for all further shapes: more than {} "
                    "classes of them",
                    kChoicesMax));
    return Choice();
  }
  const Choice choice = decide(context, own, documents, shape);
  choices_.emplace(shape, choice);
  return choice;
}

CausalAttention::Choice CausalAttention::decide(Context& context, const Attention& own,
                                                const PackedDocuments& documents,
                                                const PackedShape& shape) {
  Result<AttentionPlan> plan = library_->plan(shape);
  if (!plan.ok()) {
    tell_once(fmt::format("attention by Percheron's kernel for {}: {} has no plan: {}",
                          describe(shape), library_->name(), plan.status().message()));
    return Choice();
  }
  if (parts_.wanted == AttentionKernel::kFaster) {
    return {measure(context, own, documents, shape, *plan), *plan};
  }
  parts_.tell(
      fmt::format("attention by {} ({}) for {}", library_->name(), plan->kernel, describe(shape)));
  return {true, *plan};
}

bool CausalAttention::measure(Context& context, const Attention& own,
                              const PackedDocuments& documents, const PackedShape& shape,
                              const AttentionPlan& plan) {
  Queue& queue = queue_of(context, {});
  const auto fastest = [&](const std::function<Status()>& work) -> Result<double> {
    double ms = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kWarmUps + kTimedRuns; ++i) {
      PERCHERON_ASSIGN_OR_RETURN(const double once, parts_.timer->time_ms(queue, work));
      if (i >= kWarmUps) ms = std::min(ms, once);
    }
    return ms;
  };
  const Result<double> library_ms =
      fastest([&] { return run_library(context, own, documents, shape, plan); });
  const Result<double> own_ms = fastest([&] {
    attention(queue, own);
    return ok_status();
  });
  if (!library_ms.ok() || !own_ms.ok()) {
    const Status& why = library_ms.ok() ? own_ms.status() : library_ms.status();
    tell_once(fmt::format("attention by Percheron's kernel for {}: {}'s can't be measured: {}",
                          describe(shape), library_->name(), why.message()));
    return false;
  }
  const bool faster = *library_ms < *own_ms;
  parts_.tell(
      fmt::format("attention by {} for {}: {} takes {:.3f} ms, Percheron's kernel {:.3f} ms",
                  faster ? library_->name() : "Percheron's kernel", describe(shape),
                  library_->name(), *library_ms, *own_ms));
  return faster;
}

Status CausalAttention::run_library(Context& context, const Attention& own,
                                    const PackedDocuments& documents, const PackedShape& shape,
                                    const AttentionPlan& plan) {
  const Arena::Scope scope(context.arena);
  const int64_t places = shape.documents + 1;
  const TensorView numbers = context.arena.take(DType::kI32, {5, places});
  const auto row = [&](int64_t i) { return numbers.as<int32_t>() + i * places; };
  const PackedOffsets offsets{
      .documents = vector_of<int32_t>(documents.offsets),
      .count = documents.offsets.elements() - 1,
      .places = places,
      .strides = {shape.q_stride, shape.k_stride, shape.v_stride, shape.out_stride},
      .offsets = {row(0), row(1), row(2), row(3)},
      .lengths = row(4)};
  packed_offsets(queue_of(context, {}), offsets);
  const TensorView workspace =
      context.arena.take(DType::kU8, {plan.workspace_bytes + kWorkspaceAlignment});
  const auto address = reinterpret_cast<uintptr_t>(workspace.data()) + kWorkspaceAlignment - 1;
  return library_->run(
      queue_of(context, {}), shape,
      {.q = own.q.data,
       .k = own.k.data,
       .v = own.v.data,
       .out = own.out.data,
       .q_offsets = row(0),
       .k_offsets = row(1),
       .v_offsets = row(2),
       .out_offsets = row(3),
       .lengths = row(4),
       .workspace = reinterpret_cast<void*>(address & ~uintptr_t{kWorkspaceAlignment - 1})});
}

bool CausalAttention::has_library() {
  if (!opened_) {
    opened_ = true;
    Result<std::unique_ptr<AttentionLibrary>> library = parts_.open_library();
    if (library.ok()) {
      library_ = std::move(*library);
    } else {
      tell_once("attention by Percheron's kernel: " + library.status().message());
    }
  }
  return library_ != nullptr;
}

void CausalAttention::tell_once(const std::string& line) {
  if (told_.size() >= kLinesMax || !told_.insert(line).second) return;
  parts_.tell(line);
}

}  // namespace percheron::cuda

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device.h"

namespace percheron::cuda {

/// Measures what is put into a queue.
class QueueTimer {
 public:
  virtual ~QueueTimer() = default;
  /// The milliseconds that the queue takes for `work`, which is waited for.
  virtual Result<double> time_ms(Queue& queue, const std::function<Status()>& work) = 0;
};

/// Causal attention over packed documents by our kernel or by a library's, as DeviceOptions say.
/// Which one runs is decided once per class of shapes and said in one line, as is every reason why
/// the library can't. Any thread.
class CausalAttention {
 public:
  struct Parts {
    AttentionKernel wanted = AttentionKernel::kOwn;
    /// Opens the library; called once, when it is first needed.
    std::function<Result<std::unique_ptr<AttentionLibrary>>()> open_library;
    std::unique_ptr<QueueTimer> timer;             // only for AttentionKernel::kFaster
    std::function<void(const std::string&)> tell;  // takes one line
  };
  explicit CausalAttention(Parts parts) : parts_(std::move(parts)) {}

  /// `own` is the operation as our kernel takes it, `documents` the same mask. Scratch is the
  /// context's. Waits only where it measures.
  void run(Context& context, const Attention& own, const PackedDocuments& documents);

 private:
  struct Choice {
    bool library = false;
    AttentionPlan plan;
  };

  Choice choice_for(Context& context, const Attention& own, const PackedDocuments& documents,
                    const PackedShape& shape);
  Choice decide(Context& context, const Attention& own, const PackedDocuments& documents,
                const PackedShape& shape);
  /// Whether the library is the faster one; false if that can't be measured.
  bool measure(Context& context, const Attention& own, const PackedDocuments& documents,
               const PackedShape& shape, const AttentionPlan& plan);
  Status run_library(Context& context, const Attention& own, const PackedDocuments& documents,
                     const PackedShape& shape, const AttentionPlan& plan);
  bool has_library();
  void tell_once(const std::string& line);

  Parts parts_;
  std::mutex mutex_;  // for what follows
  bool opened_ = false;
  std::unique_ptr<AttentionLibrary> library_;  // null until opened, and where there is none
  std::map<PackedShape, Choice> choices_;
  std::set<std::string> told_;
};

}  // namespace percheron::cuda

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/features.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/parameter.h"
#include "model/target.h"

namespace percheron {

enum class DrafterKind { kEagle3, kDflash };

/// What slot s of a DFlash block with anchor a sees of the context in a sliding layer of window W.
enum class WindowRule {
  kPerSlot,    // t >= a + s - (W - 1): SpecForge, and what servers do
  kPerAnchor,  // t >= a - W, the same for all slots: speculators
};

/// What kind of drafter, in the terms of its checkpoint's config.json.
struct DrafterConfig {
  DrafterKind kind = DrafterKind::kEagle3;
  ModelConfig body;  // hidden size, heads, rope, ... of the drafter's own layers
  int64_t target_hidden_size = 0;
  int64_t num_target_layers = 0;
  std::vector<int64_t> capture;  // j: residual stream after target layer j
  int64_t draft_vocab_size = 0;  // rows of its head; the target's vocabulary when not reduced
  // EAGLE-3
  bool norm_before_residual = false, norm_before_fc = false, norm_output = false, fc_norm = false;
  bool freeze_head = false;  // head = the target's rows
  // DFlash
  int64_t block_size = 0;
  int64_t mask_token_id = -1;
  bool causal_in_sliding_layers = true;  // inside the block; full layers are bidirectional
  WindowRule window_rule = WindowRule::kPerSlot;
};

enum class RightEdge { kDrop, kZeroTeacher };
enum class Denominator { kSupervised, kValid, kAll, kWeights, kDocuments };
enum class PositionWeight { kNone, kExponential, kDpace };

/// One term of a mixture of teacher losses.
struct LossTerm {
  TeacherLoss kind = TeacherLoss::kSoftCrossEntropy;
  double factor = 1;
};

/// How rows are weighted and compared. The fields name every point on which published trainers
/// differ.
struct LossConfig {
  TeacherLoss teacher_loss = TeacherLoss::kSoftCrossEntropy;
  /// When not empty, replaces teacher_loss (speculators' {"ce": 0.1, "tv": 0.9}).
  std::vector<LossTerm> mixture;
  bool hard_labels = false;  // DFlash: the data's token instead of a teacher
  Denominator denominator = Denominator::kSupervised;
  double denominator_epsilon = 0;      // 1e-5 as speculators
  int64_t workspace_bytes = 32 << 20;  // of logits held at once; changes results by rounding only
  // EAGLE-3
  int64_t ttt_steps = 7;
  double step_decay = 0.8;
  /// Row i of step k counts if m[i + k + mask_shift]; 0 EAGLE, 1 speculators, 2 exact.
  int64_t mask_shift = 2;
  bool gate_on_draft_vocab = true;  // only rows whose teacher's top-1 is in the draft vocabulary
  /// Row i of step k embeds token i + k + row_shift; 0 for speculators' shifted batches.
  int64_t row_shift = 1;
  RightEdge right_edge = RightEdge::kDrop;
  /// Labels of the next packed document count, as in speculators; else never.
  bool cross_documents = false;
  // DFlash
  PositionWeight position_weight = PositionWeight::kExponential;
  double gamma = 7.0;  // exp(-(s - 1) / gamma)
  double dpace_alpha = 0.5;
  int64_t anchors_max = 512;  // per document
  /// > 0: one anchor per that many supervised tokens, at most anchors_max.
  double supervised_per_anchor = 0;
  uint64_t seed = 0;  // of anchors
};

/// Sums over one or more micro-batches of a step. Losses and gradients are divided once by
/// `weight`.
struct StepSums {
  double loss = 0;
  double weight = 0;
  int64_t tokens = 0, supervised = 0;
  std::vector<double> position_loss, position_weight;    // per TTT step or slot
  std::vector<double> position_correct, position_count;  // greedy draft equals the target's token
  double run_sum = 0, run_count = 0;  // accepted drafts in a row, over rows with a supervised draft

  void add(const StepSums& other);
  /// 1 + mean accepted run (golden `mean_run_plus_one`); 1 without rows.
  double simulated_acceptance_length() const;
};

class StateUpload;

/// A drafter in training: weights, forward and backward. Used by its device's worker thread.
class Drafter {
 public:
  virtual ~Drafter() = default;
  /// Where forward_backward() looks for hidden states that are on the device already. Borrowed;
  /// null: nowhere.
  void look_for_states_in(StateUpload* upload) { upload_ = upload; }
  virtual const DrafterConfig& config() const = 0;
  /// In the order of our checkpoints.
  virtual std::span<const std::unique_ptr<Parameter>> parameters() const = 0;
  /// Ascending target ids of the draft vocabulary; empty when it is the whole one.
  virtual std::span<const int32_t> draft_ids() const = 0;
  /// Adds the micro-batch's gradient sums to the parameters' gradients.
  virtual Result<StepSums> forward_backward(Context& context, const Features& features,
                                            const LossConfig& loss) = 0;
  /// Who is told in every later pass which gradients are complete; null: nobody. Borrowed.
  void set_gradient_listener(GradientListener* listener) { given_listener_ = listener; }
  /// After the masters changed (optimizer, resume): refreshes what products read.
  virtual void weights_changed(Context& context) = 0;

 protected:
  void begin_pass() {
    const bool listens = given_listener_ != nullptr && given_listener_->listens();
    listener_ = listens ? given_listener_ : nullptr;
  }
  GradientListener* listener_ = nullptr;  // of the pass that runs
  StateUpload* state_upload() const { return upload_; }

 private:
  GradientListener* given_listener_ = nullptr;
  StateUpload* upload_ = nullptr;
};

/// What a drafter needs of its target, borrowed for its whole life.
struct TargetParts {
  ConstTensorView embedding;   // [V, H]
  ConstTensorView head;        // [V, H]
  ConstTensorView final_norm;  // [H] f32
  double rms_norm_eps = 1e-6;
};

/// Fresh random weights (normal, 0.02; norms 1) as a pure function of `seed`.
Result<std::unique_ptr<Drafter>> make_drafter(Context& context, const DrafterConfig& config,
                                              const TargetParts& target,
                                              std::vector<int32_t> draft_ids, DType compute_dtype,
                                              uint64_t seed);

}  // namespace percheron

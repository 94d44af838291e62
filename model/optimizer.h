#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "model/parameter.h"

namespace percheron {

enum class OptimizerKind { kAdamw, kMuon };

/// How Muon's step length depends on a matrix's shape.
enum class MuonScale {
  kMatchRmsAdamw,  // 0.2 sqrt(max(rows, columns))
  kOriginal,       // sqrt(max(1, rows / columns))
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamw;
  double learning_rate = 1e-4;  // AdamW's
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0;
  double clip_norm = 1.0;  // largest norm of all gradients together; 0 = no clipping
  // Muon, for matrices other than embedding and head
  double muon_learning_rate = 4e-3;
  double muon_momentum = 0.95;
  double muon_weight_decay = 0;
  MuonScale muon_scale = MuonScale::kMatchRmsAdamw;
  int newton_schulz_steps = 5;
};

/// kInvalidArgument names the setting that is out of range and its value.
Status check_optimizer_config(const OptimizerConfig& config);

/// An optimizer's state in host memory, for checkpoints: f32 tensors named "exp_avg.NAME" and
/// "exp_avg_sq.NAME" (AdamW) or "momentum.NAME" (Muon), NAME being the parameter's.
struct OptimizerState {
  struct Moment {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  int64_t steps = 0;  // updates done
  std::map<std::string, Moment> moments;
};

/// Updates a drafter's trainable parameters from their gradient sums. One object per device, used
/// by its worker thread. The caller tells the drafter afterwards that its weights changed.
class Optimizer {
 public:
  /// `parameters` are borrowed for the optimizer's life; frozen ones are left alone.
  static Result<std::unique_ptr<Optimizer>> make(
      Context& context, const OptimizerConfig& config,
      std::span<const std::unique_ptr<Parameter>> parameters);
  virtual ~Optimizer() = default;

  /// One update: gradients are divided by `weight`, clipped together to clip_norm, and applied with
  /// every base rate times `rate_factor` (the schedule's); then they are zeroed. Returns the norm
  /// of the averaged gradient before clipping. Waits for that norm, not for the update. kDataLoss,
  /// naming the first such parameter, if a gradient is not finite; kInvalidArgument if weight is
  /// not positive. Parameters and moments are unchanged then.
  virtual Result<double> step(Context& context, double weight, double rate_factor) = 0;

  /// Updates done so far.
  virtual int64_t steps() const = 0;
  virtual Result<OptimizerState> export_state(Context& context) const = 0;
  /// Continues exactly where the exported state was. kDataLoss, naming the tensor, if one is
  /// missing, unknown or of another shape: moments are never silently reset (SpecForge#139).
  virtual Status import_state(Context& context, const OptimizerState& state) = 0;
};

/// Zeroes the gradients of all trainable parameters.
void zero_gradients(Context& context, std::span<const std::unique_ptr<Parameter>> parameters);

/// Muon's update of one matrix. Source: Jordan et al. 2024 as in torch.optim.Muon, in f32.
/// value, gradient, momentum: [rows, columns] f32. scale: [1] f32, the factor on the gradient.
void muon_update(Context& context, const OptimizerConfig& config, double rate_factor,
                 ConstTensorView scale, ConstTensorView gradient, TensorView value,
                 TensorView momentum);

}  // namespace percheron

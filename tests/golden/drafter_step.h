#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/features.h"
#include "data/safetensors.h"
#include "model/drafter.h"
#include "tests/golden/golden_device.h"
#include "tests/golden/runner.h"

namespace percheron::golden {

/// A golden training step: the file, and what eagle3 and dflash cases read from it alike.
struct DrafterStep {
  SafetensorsFile file;
  DrafterConfig config;  // shape of the body; kind, norms and blocks are the caller's
  LossConfig loss;       // the loss by name, its denominator and gamma

  std::string text(const std::string& key, const std::string& otherwise = "") const;
  int64_t integer(const std::string& key, int64_t otherwise) const;
  bool flag(const std::string& key) const { return integer(key, 0) != 0; }
};

/// kInvalidArgument names a metadata value that no convention of ours covers.
Result<DrafterStep> open_drafter_step(const std::string& path);

/// One packed micro-batch: rows of a [B, T] batch are documents, or those of `document_ids` where
/// the file has them. `prefix`: of the tensors' names ("batch."). `states`: name of the captured
/// states [B, T, K H]; `last`: name of the last layer's output, or empty.
Result<Features> golden_features(const DrafterStep& step, const std::string& prefix,
                                 const std::string& states, const std::string& last);

/// The frozen matrices of a case in device memory, which TargetParts borrows.
struct GoldenTarget {
  Tensor embedding, head, final_norm;
  TargetParts parts;
};

/// `head`: rows of it are padded with zeros to the embedding's. `norm`: name of the final norm, or
/// empty.
Result<GoldenTarget> golden_target(GoldenDevice& device, const DrafterStep& step,
                                   const std::string& embedding, const std::string& head,
                                   const std::string& norm);

/// Sets every parameter of `drafter` from "param.*" (both spellings of EAGLE-3's layer).
Status set_parameters(GoldenDevice& device, const DrafterStep& step, Drafter& drafter);

/// Appends loss and every gradient, divided by the sums' weight, against "grad.*". A gradient that
/// only one side has is an infinite difference. `expected`: name of the loss tensor.
Status compare_step(GoldenDevice& device, const DrafterStep& step, Drafter& drafter,
                    const StepSums& sums, const std::string& expected, Report& report);

}  // namespace percheron::golden

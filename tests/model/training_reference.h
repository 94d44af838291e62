#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/model/training_case.h"

namespace percheron {

/// A training step's loss written down once more, in double precision, one row after the other and
/// from the formulas alone: no packing, no chunks, no intervals. Rope must be the default kind.
/// Gradients come from central differences of it.
class TrainingReference {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  TrainingReference(TestDevice& device, const Drafter& drafter, const TrainingTarget& target);

  /// Loss divided by the micro-batch's weight.
  double eagle3(const Features& features, const LossConfig& loss) const;
  double dflash(const Features& features, const LossConfig& loss,
                const std::vector<DflashAnchor>& anchors) const;

  /// By parameter name; change them for differences.
  std::map<std::string, Row>& weights() { return weights_; }
  /// From now on, weights and factors that gradients do not flow through keep their last values.
  void replay_detached();

 private:
  struct KeyValue {
    Row key, value;
  };

  double detached(double value) const;
  Row product(const Row& weight, const Row& x) const;
  Row norm(const Row& weight, const Row& x) const;
  void head_norms(const std::string& name, Row& x) const;
  void rotate(Row& x, int64_t position) const;
  Row row_of(const Row& table, int64_t row) const;
  Row state(const Features& features, int64_t row, bool last) const;
  Row mlp(const std::string& prefix, const Row& x) const;
  KeyValue key_value(const std::string& prefix, const Row& x, int64_t position) const;
  Row query(const std::string& prefix, const Row& x, int64_t position) const;
  Row attend(const Row& query, const std::vector<const KeyValue*>& seen) const;
  Row logits(const Row& normed, bool teacher) const;
  Row teacher_logits(const Features& features, int64_t row) const;
  int64_t draft_row(int64_t id) const;
  double compare(const LossConfig& loss, const Row& z, const Row& u) const;
  Row fused_eagle3(const Row& states) const;
  Row eagle3_input(int64_t token, const Row& hidden) const;
  Rows eagle3_row(const Features& features, int64_t begin, int64_t end, int64_t row, int64_t steps,
                  const std::vector<KeyValue>& first, const Row& fused) const;
  Rows block_outputs(int64_t anchor_token, int64_t anchor, const Rows& context) const;

  DrafterConfig config_;
  std::vector<int32_t> draft_ids_;
  std::map<std::string, Row> weights_;
  Row embedding_, head_, final_norm_;
  mutable std::vector<double> tape_;
  mutable size_t tape_at_ = 0;
  bool replay_ = false;
};

/// Value of one teacher loss between draft logits z and teacher logits u; `lambda`: of kHybrid.
double reference_teacher_loss(TeacherLoss kind, const std::vector<double>& z,
                              const std::vector<double>& u, double lambda);

/// The largest difference between `gradients` (sums, divided by `weight`) and central differences
/// of `loss` at up to `samples` elements of each parameter, relative to the largest slope seen in
/// it.
double gradient_error(TrainingReference& reference, const std::function<double()>& loss,
                      const std::map<std::string, std::vector<float>>& gradients, double weight,
                      size_t samples, uint64_t seed);

}  // namespace percheron

#include "tests/model/training_reference.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace percheron {
namespace {

using Row = TrainingReference::Row;

Row doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

void add(Row& x, const Row& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

Row log_softmax(const Row& z) {
  const double largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const double value : z) sum += std::exp(value - largest);
  Row out = z;
  for (double& value : out) value -= largest + std::log(sum);
  return out;
}

double kl(const Row& log_p, const Row& log_q) {
  double sum = 0;
  for (size_t i = 0; i < log_p.size(); ++i) sum += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
  return sum;
}

double accepted(const Row& log_p, const Row& log_q) {
  double sum = 0;
  for (size_t i = 0; i < log_p.size(); ++i) sum += std::exp(std::min(log_p[i], log_q[i]));
  return sum;
}

Row mean_of(const Row& log_p, const Row& log_q) {
  Row mean = log_p;
  for (size_t i = 0; i < mean.size(); ++i) {
    mean[i] = std::log(0.5 * (std::exp(log_p[i]) + std::exp(log_q[i])));
  }
  return mean;
}

}  // namespace

double reference_teacher_loss(TeacherLoss kind, const Row& z, const Row& u, double lambda) {
  const Row log_q = log_softmax(z), log_p = log_softmax(u);
  const double accept = accepted(log_p, log_q);
  switch (kind) {
    case TeacherLoss::kSoftCrossEntropy: {
      double sum = 0;
      for (size_t i = 0; i < z.size(); ++i) sum -= std::exp(log_p[i]) * log_q[i];
      return sum;
    }
    case TeacherLoss::kKlDivergence: return kl(log_p, log_q);
    case TeacherLoss::kReverseKl: return kl(log_q, log_p);
    case TeacherLoss::kJensenShannon: {
      const Row mean = mean_of(log_p, log_q);
      return 0.5 * (kl(log_p, mean) + kl(log_q, mean));
    }
    case TeacherLoss::kTeacherArgmax:
      return -log_q[static_cast<size_t>(std::max_element(u.begin(), u.end()) - u.begin())];
    case TeacherLoss::kTotalVariation: return 1 - accept;
    case TeacherLoss::kNegativeLogAccept: return -std::log(std::max(accept, 1e-5));
    case TeacherLoss::kHybrid: return lambda * kl(log_p, log_q) + (1 - lambda) * (1 - accept);
  }
  return 0;
}

TrainingReference::TrainingReference(TestDevice& device, const Drafter& drafter,
                                     const TrainingTarget& target)
    : config_(drafter.config()),
      draft_ids_(drafter.draft_ids().begin(), drafter.draft_ids().end()),
      embedding_(doubles(target.embedding)),
      head_(doubles(target.head)),
      final_norm_(doubles(target.final_norm)) {
  for (const auto& parameter : drafter.parameters()) {
    weights_[parameter->name] = doubles(device.floats(parameter->value));
  }
}

double TrainingReference::detached(double value) const {
  if (replay_) return tape_[tape_at_++];
  tape_.push_back(value);
  return value;
}

void TrainingReference::replay_detached() {
  replay_ = true;
  tape_at_ = 0;
}

Row TrainingReference::product(const Row& w, const Row& x) const {
  Row y(w.size() / x.size(), 0.0);
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
  }
  return y;
}

Row TrainingReference::norm(const Row& w, const Row& x) const {
  double sum = 0;
  for (const double value : x) sum += value * value;
  const double scale =
      1.0 / std::sqrt(sum / static_cast<double>(x.size()) + config_.body.rms_norm_eps);
  Row y = x;
  for (size_t i = 0; i < y.size(); ++i) y[i] *= scale * w[i];
  return y;
}

void TrainingReference::head_norms(const std::string& name, Row& x) const {
  if (!config_.body.qk_norm) return;
  const int64_t dim = config_.body.head_dim;
  for (auto head = x.begin(); head != x.end(); head += dim) {
    const Row normed = norm(weights_.at(name), Row(head, head + dim));
    std::copy(normed.begin(), normed.end(), head);
  }
}

void TrainingReference::rotate(Row& x, int64_t position) const {
  const size_t dim = static_cast<size_t>(config_.body.head_dim), half = dim / 2;
  for (size_t head = 0; head < x.size(); head += dim) {
    for (size_t i = 0; i < half; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(dim);
      const double angle =
          static_cast<double>(position) / std::pow(config_.body.rope.theta, exponent);
      const double a = x[head + i], b = x[head + i + half];
      x[head + i] = a * std::cos(angle) - b * std::sin(angle);
      x[head + i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
}

Row TrainingReference::row_of(const Row& table, int64_t row) const {
  const auto width = config_.body.hidden_size;
  return {table.begin() + row * width, table.begin() + (row + 1) * width};
}

/// Captured states [K H] of a row, or the last layer's output [H].
Row TrainingReference::state(const Features& features, int64_t row, bool last) const {
  const auto* values = reinterpret_cast<const float*>(features.hidden_states.data());
  const int64_t hidden = features.hidden_size, width = features.slots * hidden;
  const float* begin = values + row * width;
  return last ? Row(begin + width - hidden, begin + width) : Row(begin, begin + width - hidden);
}

Row TrainingReference::mlp(const std::string& prefix, const Row& x) const {
  const Row normed = norm(weights_.at(prefix + "post_attention_layernorm.weight"), x);
  Row gate = product(weights_.at(prefix + "mlp.gate_proj.weight"), normed);
  const Row up = product(weights_.at(prefix + "mlp.up_proj.weight"), normed);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1.0 + std::exp(-gate[i]));
  Row out = product(weights_.at(prefix + "mlp.down_proj.weight"), gate);
  add(out, x);
  return out;
}

TrainingReference::KeyValue TrainingReference::key_value(const std::string& prefix, const Row& x,
                                                         int64_t position) const {
  KeyValue kv;
  kv.key = product(weights_.at(prefix + "self_attn.k_proj.weight"), x);
  kv.value = product(weights_.at(prefix + "self_attn.v_proj.weight"), x);
  head_norms(prefix + "self_attn.k_norm.weight", kv.key);
  rotate(kv.key, position);
  return kv;
}

Row TrainingReference::query(const std::string& prefix, const Row& x, int64_t position) const {
  Row q = product(weights_.at(prefix + "self_attn.q_proj.weight"), x);
  head_norms(prefix + "self_attn.q_norm.weight", q);
  rotate(q, position);
  return q;
}

Row TrainingReference::attend(const Row& q, const std::vector<const KeyValue*>& seen) const {
  const size_t dim = static_cast<size_t>(config_.body.head_dim);
  const size_t heads = q.size() / dim;
  const size_t group = heads / static_cast<size_t>(config_.body.num_key_value_heads);
  Row out(q.size(), 0.0);
  for (size_t h = 0; h < heads; ++h) {
    const size_t at = h * dim, kv_at = h / group * dim;
    Row scores;
    for (const KeyValue* kv : seen) {
      double dot = 0;
      for (size_t i = 0; i < dim; ++i) dot += q[at + i] * kv->key[kv_at + i];
      scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
    }
    const Row log_p = log_softmax(scores);
    for (size_t j = 0; j < seen.size(); ++j) {
      for (size_t i = 0; i < dim; ++i)
        out[at + i] += std::exp(log_p[j]) * seen[j]->value[kv_at + i];
    }
  }
  return out;
}

/// The drafter's head where it has one of its own, else the target's rows of the draft vocabulary.
Row TrainingReference::logits(const Row& normed, bool teacher) const {
  const auto own = weights_.find("lm_head.weight");
  if (!teacher && own != weights_.end()) return product(own->second, normed);
  Row all = product(head_, normed), chosen;
  if (draft_ids_.empty()) return all;
  for (const int32_t id : draft_ids_) chosen.push_back(all[static_cast<size_t>(id)]);
  return chosen;
}

Row TrainingReference::teacher_logits(const Features& features, int64_t row) const {
  return logits(norm(final_norm_, state(features, row, true)), true);
}

int64_t TrainingReference::draft_row(int64_t id) const {
  if (draft_ids_.empty()) return id;
  const auto found = std::find(draft_ids_.begin(), draft_ids_.end(), id);
  return found == draft_ids_.end() ? -1 : found - draft_ids_.begin();
}

double TrainingReference::compare(const LossConfig& loss, const Row& z, const Row& u) const {
  std::vector<LossTerm> terms = loss.mixture;
  if (terms.empty()) terms.push_back({loss.teacher_loss, 1.0});
  double sum = 0;
  for (const LossTerm& term : terms) {
    const double lambda = detached(std::exp(-3 * accepted(log_softmax(u), log_softmax(z))));
    sum += term.factor * reference_teacher_loss(term.kind, z, u, lambda);
  }
  return sum;
}

Row TrainingReference::fused_eagle3(const Row& states) const {
  if (config_.norm_before_fc) {
    return product(weights_.at("fc.weight"), norm(weights_.at("input_norm.weight"), states));
  }
  Row normed;
  const int64_t hidden = config_.target_hidden_size;
  for (size_t j = 0; config_.fc_norm && j < config_.capture.size(); ++j) {
    const auto begin = states.begin() + static_cast<int64_t>(j) * hidden;
    const Row part =
        norm(weights_.at("fc_norm." + std::to_string(j) + ".weight"), Row(begin, begin + hidden));
    normed.insert(normed.end(), part.begin(), part.end());
  }
  return product(weights_.at("fc.weight"), config_.fc_norm ? normed : states);
}

/// [embedding ; hidden], both normalised.
Row TrainingReference::eagle3_input(int64_t token, const Row& hidden) const {
  Row input = norm(weights_.at("midlayer.input_layernorm.weight"), row_of(embedding_, token));
  const Row normed = norm(weights_.at("midlayer.hidden_norm.weight"), hidden);
  input.insert(input.end(), normed.begin(), normed.end());
  return input;
}

/// The logits of one row in all steps. `first`: keys of step 0 of the document's rows up to this
/// one.
TrainingReference::Rows TrainingReference::eagle3_row(const Features& features, int64_t begin,
                                                      int64_t end, int64_t row, int64_t steps,
                                                      const std::vector<KeyValue>& first,
                                                      const Row& fused) const {
  const std::string prefix = "midlayer.";
  std::vector<KeyValue> own;
  own.reserve(static_cast<size_t>(steps));
  Row hidden = fused;
  Rows all;
  for (int64_t k = 0; k < steps; ++k) {
    const int64_t at = begin + row + 1 + k, position = row + k;
    const int64_t token = at < end ? features.batch.token_ids[static_cast<size_t>(at)] : 0;
    const Row input = eagle3_input(token, hidden);
    if (k > 0) own.push_back(key_value(prefix, input, position));
    std::vector<const KeyValue*> seen;
    for (int64_t j = 0; j <= row; ++j) seen.push_back(&first[static_cast<size_t>(j)]);
    for (const KeyValue& kv : own) seen.push_back(&kv);
    const Row attended = attend(query(prefix, input, position), seen);
    Row residual = config_.norm_before_residual
                       ? norm(weights_.at("midlayer.hidden_norm.weight"), hidden)
                       : hidden;
    add(residual, product(weights_.at(prefix + "self_attn.o_proj.weight"), attended));
    const Row out = mlp(prefix, residual);
    const Row normed = norm(weights_.at("norm.weight"), out);
    all.push_back(logits(normed, false));
    hidden = config_.norm_output ? normed : out;
  }
  return all;
}

double TrainingReference::eagle3(const Features& features, const LossConfig& loss) const {
  tape_at_ = 0;
  if (!replay_) tape_.clear();
  const MicroBatch& batch = features.batch;
  const size_t steps = static_cast<size_t>(loss.ttt_steps);
  Row sums(steps, 0.0), counts(steps, 0.0);
  double supervised = 0;
  for (const uint8_t mask : batch.loss_mask) supervised += mask;
  for (int64_t d = 0; d < batch.documents(); ++d) {
    const int64_t begin = batch.offsets[d], end = batch.offsets[d + 1], length = end - begin;
    std::vector<KeyValue> first;
    for (int64_t i = 0; i < length; ++i) {
      const Row fused = fused_eagle3(state(features, begin + i, false));
      const int64_t token = i + 1 < length ? batch.token_ids[begin + i + 1] : 0;
      first.push_back(key_value("midlayer.", eagle3_input(token, fused), i));
      const Rows z = eagle3_row(features, begin, end, i, loss.ttt_steps, first, fused);
      for (size_t k = 0; k < steps; ++k) {
        const int64_t t = i + 1 + static_cast<int64_t>(k);
        const int64_t masked = t - 1 + loss.mask_shift;
        const bool zero = loss.right_edge == RightEdge::kZeroTeacher && t == length;
        if (masked >= length || batch.loss_mask[begin + masked] == 0) continue;
        if (t >= length && !zero) continue;
        const int64_t top1 = zero || features.top1.empty() ? 0 : features.top1[begin + t];
        if (loss.gate_on_draft_vocab && draft_row(top1) < 0) continue;
        const Row u = zero ? Row(z[k].size(), 0.0) : teacher_logits(features, begin + t);
        sums[k] += compare(loss, z[k], u);
        counts[k] += 1;
      }
    }
  }
  double total = 0, weights = 0;
  for (size_t k = 0; k < steps; ++k) {
    const double decay = std::pow(loss.step_decay, static_cast<double>(k));
    const double own = loss.denominator == Denominator::kValid
                           ? std::max(counts[k], 1e-30) + loss.denominator_epsilon
                           : 1.0;
    total += decay * sums[k] / own;
    weights += decay * counts[k];
  }
  switch (loss.denominator) {
    case Denominator::kValid: return total;
    case Denominator::kSupervised: return total / supervised;
    case Denominator::kAll: return total / static_cast<double>(batch.tokens());
    case Denominator::kDocuments: return total / static_cast<double>(batch.documents());
    case Denominator::kWeights: return total / weights;
  }
  return total;
}

/// The outputs [S] of one block; `context`: the document's fused rows.
TrainingReference::Rows TrainingReference::block_outputs(int64_t anchor_token, int64_t anchor,
                                                         const Rows& context) const {
  const int64_t size = config_.block_size;
  Rows x;
  for (int64_t s = 0; s < size; ++s) {
    x.push_back(row_of(embedding_, s == 0 ? anchor_token : config_.mask_token_id));
  }
  for (int64_t layer = 0; layer < config_.body.num_hidden_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const int64_t window = config_.body.sliding_window[static_cast<size_t>(layer)];
    std::vector<KeyValue> keys, own;
    for (int64_t t = 0; t < anchor; ++t) {
      keys.push_back(key_value(prefix, context[static_cast<size_t>(t)], t));
    }
    Rows normed;
    for (int64_t s = 0; s < size; ++s) {
      normed.push_back(norm(weights_.at(prefix + "input_layernorm.weight"), x[s]));
      own.push_back(key_value(prefix, normed.back(), anchor + s));
    }
    for (int64_t s = 0; s < size; ++s) {
      std::vector<const KeyValue*> seen;
      for (int64_t t = 0; t < anchor; ++t) {
        const int64_t first =
            config_.window_rule == WindowRule::kPerSlot ? anchor + s - window + 1 : anchor - window;
        if (window == 0 || t >= first) seen.push_back(&keys[static_cast<size_t>(t)]);
      }
      for (int64_t r = 0; r < size; ++r) {
        const bool causal = window > 0 && config_.causal_in_sliding_layers;
        if (!causal || r <= s) seen.push_back(&own[static_cast<size_t>(r)]);
      }
      add(x[s], product(weights_.at(prefix + "self_attn.o_proj.weight"),
                        attend(query(prefix, normed[s], anchor + s), seen)));
      x[s] = mlp(prefix, x[s]);
    }
  }
  return x;
}

double TrainingReference::dflash(const Features& features, const LossConfig& loss,
                                 const std::vector<DflashAnchor>& anchors) const {
  tape_at_ = 0;
  if (!replay_) tape_.clear();
  const MicroBatch& batch = features.batch;
  double total = 0, slots = 0, weights = 0;
  for (const DflashAnchor& anchor : anchors) {
    const int64_t begin = batch.offsets[anchor.document], end = batch.offsets[anchor.document + 1];
    Rows context;
    for (int64_t t = begin; t < anchor.row; ++t) {
      context.push_back(norm(weights_.at("hidden_norm.weight"),
                             product(weights_.at("fc.weight"), state(features, t, false))));
    }
    const Rows out = block_outputs(batch.token_ids[anchor.row], anchor.row - begin, context);
    std::vector<double> values, slot_weights, confidence;
    for (int64_t s = 1; s < config_.block_size; ++s) {
      const int64_t at = anchor.row + s;
      if (at >= end || batch.loss_mask[at] == 0) continue;
      const double decay = loss.position_weight == PositionWeight::kExponential
                               ? std::exp(-static_cast<double>(s - 1) / loss.gamma)
                               : 1.0;
      slots += 1;
      if (loss.position_weight != PositionWeight::kDpace) weights += decay;
      const int64_t label = draft_row(batch.token_ids[at]);
      if (loss.hard_labels && label < 0) continue;
      if (!loss.hard_labels && loss.gate_on_draft_vocab && draft_row(features.top1[at - 1]) < 0) {
        continue;
      }
      const Row z = logits(norm(weights_.at("norm.weight"), out[s]), false);
      values.push_back(loss.hard_labels ? -log_softmax(z)[static_cast<size_t>(label)]
                                        : compare(loss, z, teacher_logits(features, at - 1)));
      slot_weights.push_back(decay);
    }
    for (size_t i = 0; loss.position_weight == PositionWeight::kDpace && i < values.size(); ++i) {
      double weight = 0, product = 1;
      for (size_t r = 0; r < values.size(); ++r) {
        product *= (1 - loss.dpace_alpha) * std::exp(-values[r]) + loss.dpace_alpha;
        if (r >= i) weight += product;
      }
      slot_weights[i] = detached(weight);
      weights += slot_weights[i];
    }
    for (size_t i = 0; i < values.size(); ++i) total += slot_weights[i] * values[i];
  }
  switch (loss.denominator) {
    case Denominator::kSupervised:
    case Denominator::kValid: return total / (slots + loss.denominator_epsilon);
    case Denominator::kAll: return total / static_cast<double>(batch.tokens());
    case Denominator::kDocuments: return total / static_cast<double>(batch.documents());
    case Denominator::kWeights: return total / weights;
  }
  return total;
}

double gradient_error(TrainingReference& reference, const std::function<double()>& loss,
                      const std::map<std::string, std::vector<float>>& gradients, double weight,
                      size_t samples, uint64_t seed) {
  constexpr double kStep = 1e-5;
  loss();  // Records what the gradient does not flow through.
  reference.replay_detached();
  double worst = 0;
  for (const auto& [name, gradient] : gradients) {
    Row& values = reference.weights().at(name);
    Random random = Random::keyed(seed, name);
    double largest = 1e-4, difference = 0;
    for (size_t n = 0; n < std::min(samples, values.size()); ++n) {
      const size_t i =
          samples >= values.size() ? n : static_cast<size_t>(random.below(values.size()));
      const double value = values[i];
      values[i] = value + kStep;
      const double above = loss();
      values[i] = value - kStep;
      const double below = loss();
      values[i] = value;
      const double slope = (above - below) / (2 * kStep);
      largest = std::max(largest, std::abs(slope));
      difference = std::max(difference, std::abs(slope - gradient[i] / weight));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

}  // namespace percheron

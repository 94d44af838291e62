#include "tests/model/reference_drafter.h"

#include <algorithm>
#include <cmath>

namespace percheron {
namespace {

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

void add(ReferenceDrafter::Row& x, const ReferenceDrafter::Row& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

ReferenceDrafter::ReferenceDrafter(TestDevice& device, const Drafter& drafter, const Target& target)
    : config_(drafter.config()),
      draft_ids_(drafter.draft_ids().begin(), drafter.draft_ids().end()),
      embedding_(doubles(device.floats(target.embedding()))) {
  for (const auto& parameter : drafter.parameters()) {
    weights_[parameter->name] = doubles(device.floats(parameter->value));
  }
  if (weights_.contains("lm_head.weight")) return;
  const std::vector<double> head = doubles(device.floats(target.head()));
  std::vector<double>& rows = weights_["lm_head.weight"];
  const auto hidden = static_cast<size_t>(config_.body.hidden_size);
  for (int32_t r = 0; r < config_.draft_vocab_size; ++r) {
    const int32_t id = draft_ids_.empty() ? r : draft_ids_[static_cast<size_t>(r)];
    const auto first = head.begin() + static_cast<int64_t>(static_cast<size_t>(id) * hidden);
    rows.insert(rows.end(), first, first + static_cast<int64_t>(hidden));
  }
}

ReferenceDrafter::Row ReferenceDrafter::product(const std::string& name, const Row& x) const {
  const std::vector<double>& w = weight(name);
  Row y(w.size() / x.size(), 0.0);
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
  }
  return y;
}

ReferenceDrafter::Row ReferenceDrafter::norm(const std::string& name, const Row& x) const {
  const std::vector<double>& w = weight(name);
  double sum = 0;
  for (const double value : x) sum += value * value;
  const double scale =
      1.0 / std::sqrt(sum / static_cast<double>(x.size()) + config_.body.rms_norm_eps);
  Row y = x;
  for (size_t i = 0; i < y.size(); ++i) y[i] *= scale * w[i];
  return y;
}

void ReferenceDrafter::head_norms(const std::string& name, Row& x) const {
  if (!config_.body.qk_norm) return;
  const int64_t dim = config_.body.head_dim;
  for (auto head = x.begin(); head != x.end(); head += dim) {
    const Row normed = norm(name, Row(head, head + dim));
    std::copy(normed.begin(), normed.end(), head);
  }
}

void ReferenceDrafter::rotate(Row& x, int64_t position) const {
  const int64_t dim = config_.body.head_dim, half = dim / 2;
  for (size_t head = 0; head < x.size(); head += static_cast<size_t>(dim)) {
    for (int64_t i = 0; i < half; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(dim);
      const double angle =
          static_cast<double>(position) / std::pow(config_.body.rope.theta, exponent);
      double& a = x[head + static_cast<size_t>(i)];
      double& b = x[head + static_cast<size_t>(i + half)];
      const double a0 = a, b0 = b;
      a = a0 * std::cos(angle) - b0 * std::sin(angle);
      b = b0 * std::cos(angle) + a0 * std::sin(angle);
    }
  }
}

ReferenceDrafter::Row ReferenceDrafter::embedded(int32_t token) const {
  const int64_t hidden = config_.body.hidden_size;
  const auto first = embedding_.begin() + token * hidden;
  return {first, first + hidden};
}

ReferenceDrafter::Row ReferenceDrafter::fused(const Row& states) const {
  if (config_.norm_before_fc) return product("fc.weight", norm("input_norm.weight", states));
  if (!config_.fc_norm) return product("fc.weight", states);
  Row normed;
  const int64_t width = config_.target_hidden_size;
  for (size_t k = 0; k < config_.capture.size(); ++k) {
    const auto first = states.begin() + static_cast<int64_t>(k) * width;
    const Row part = norm("fc_norm." + std::to_string(k) + ".weight", Row(first, first + width));
    normed.insert(normed.end(), part.begin(), part.end());
  }
  return product("fc.weight", normed);
}

ReferenceDrafter::Row ReferenceDrafter::mlp(const std::string& prefix, const Row& x) const {
  const Row normed = norm(prefix + "post_attention_layernorm.weight", x);
  Row gate = product(prefix + "mlp.gate_proj.weight", normed);
  const Row up = product(prefix + "mlp.up_proj.weight", normed);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  Row out = product(prefix + "mlp.down_proj.weight", gate);
  add(out, x);
  return out;
}

ReferenceDrafter::KeyValue ReferenceDrafter::key_value(const std::string& prefix, const Row& x,
                                                       int64_t position) const {
  KeyValue kv{product(prefix + "self_attn.k_proj.weight", x),
              product(prefix + "self_attn.v_proj.weight", x)};
  head_norms(prefix + "self_attn.k_norm.weight", kv.key);
  rotate(kv.key, position);
  return kv;
}

ReferenceDrafter::Row ReferenceDrafter::attend(const Row& query,
                                               const std::vector<KeyValue>& seen) const {
  const auto dim = static_cast<size_t>(config_.body.head_dim);
  const auto heads = static_cast<size_t>(config_.body.num_attention_heads);
  const size_t group = heads / static_cast<size_t>(config_.body.num_key_value_heads);
  Row out(query.size(), 0.0);
  for (size_t h = 0; h < heads; ++h) {
    std::vector<double> scores;
    for (const KeyValue& kv : seen) {
      double score = 0;
      for (size_t i = 0; i < dim; ++i) score += query[h * dim + i] * kv.key[h / group * dim + i];
      scores.push_back(score / std::sqrt(static_cast<double>(dim)));
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - largest);
    for (size_t s = 0; s < seen.size(); ++s) {
      for (size_t i = 0; i < dim; ++i) {
        out[h * dim + i] += scores[s] / sum * seen[s].value[h / group * dim + i];
      }
    }
  }
  return out;
}

int32_t ReferenceDrafter::choose(const Row& normed) const {
  const Row logits = product("lm_head.weight", normed);
  const auto row =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  return draft_ids_.empty() ? row : draft_ids_[static_cast<size_t>(row)];
}

std::vector<int32_t> ReferenceDrafter::eagle3(const Rows& states, const std::vector<int32_t>& next,
                                              int64_t count) const {
  const std::string prefix = "midlayer.";
  std::vector<KeyValue> seen;
  std::vector<int32_t> drafted;
  Row fed;
  const auto fresh = static_cast<int64_t>(states.size());
  for (int64_t row = 0; row < fresh + count - 1; ++row) {
    const bool verified = row < fresh;
    const Row hidden = verified ? fused(states[static_cast<size_t>(row)]) : fed;
    const int32_t token = verified ? next[static_cast<size_t>(row)] : drafted.back();
    Row inputs = norm(prefix + "input_layernorm.weight", embedded(token));
    const Row normed = norm(prefix + "hidden_norm.weight", hidden);
    inputs.insert(inputs.end(), normed.begin(), normed.end());
    Row query = product(prefix + "self_attn.q_proj.weight", inputs);
    head_norms(prefix + "self_attn.q_norm.weight", query);
    rotate(query, row);
    seen.push_back(key_value(prefix, inputs, row));
    Row out = product(prefix + "self_attn.o_proj.weight", attend(query, seen));
    add(out, config_.norm_before_residual ? normed : hidden);
    out = mlp(prefix, out);
    const Row last = norm("norm.weight", out);
    fed = config_.norm_output ? last : out;
    if (row >= fresh - 1) drafted.push_back(choose(last));
  }
  return drafted;
}

std::vector<int32_t> ReferenceDrafter::dflash(const Rows& states, int32_t token,
                                              int64_t size) const {
  Rows context;
  for (const Row& row : states)
    context.push_back(norm("hidden_norm.weight", product("fc.weight", row)));
  const auto anchor = static_cast<int64_t>(states.size());
  Rows block;
  for (int64_t s = 0; s < size; ++s) {
    block.push_back(embedded(s == 0 ? token : static_cast<int32_t>(config_.mask_token_id)));
  }
  for (int64_t layer = 0; layer < config_.body.num_hidden_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const int64_t window = config_.body.sliding_window[static_cast<size_t>(layer)];
    std::vector<KeyValue> before, own;
    for (int64_t t = 0; t < anchor; ++t) {
      before.push_back(key_value(prefix, context[static_cast<size_t>(t)], t));
    }
    Rows normed;
    for (int64_t s = 0; s < size; ++s) {
      normed.push_back(norm(prefix + "input_layernorm.weight", block[static_cast<size_t>(s)]));
      own.push_back(key_value(prefix, normed.back(), anchor + s));
    }
    for (int64_t s = 0; s < size; ++s) {
      std::vector<KeyValue> seen;
      for (int64_t t = 0; t < anchor; ++t) {
        if (window == 0 || t >= anchor + s - (window - 1))
          seen.push_back(before[static_cast<size_t>(t)]);
      }
      const bool causal = window > 0 && config_.causal_in_sliding_layers;
      for (int64_t o = 0; o < size; ++o) {
        if (!causal || o <= s) seen.push_back(own[static_cast<size_t>(o)]);
      }
      Row query = product(prefix + "self_attn.q_proj.weight", normed[static_cast<size_t>(s)]);
      head_norms(prefix + "self_attn.q_norm.weight", query);
      rotate(query, anchor + s);
      Row& x = block[static_cast<size_t>(s)];
      add(x, product(prefix + "self_attn.o_proj.weight", attend(query, seen)));
      x = mlp(prefix, x);
    }
  }
  std::vector<int32_t> drafted;
  for (int64_t s = 1; s < size; ++s) {
    drafted.push_back(choose(norm("norm.weight", block[static_cast<size_t>(s)])));
  }
  return drafted;
}

}  // namespace percheron

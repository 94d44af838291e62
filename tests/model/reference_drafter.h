#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/drafter.h"
#include "tests/model/toy_model.h"

namespace percheron {

/// Drafting written down once more, in double precision and from scratch every time: no cache, no
/// packing, one row after the other. Rope must be the default kind.
class ReferenceDrafter {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  ReferenceDrafter(TestDevice& device, const Drafter& drafter, const Target& target);

  /// The greedy chain of an EAGLE-3 drafter after `states` [n][K H], next[i] being the token after
  /// row i.
  std::vector<int32_t> eagle3(const Rows& states, const std::vector<int32_t>& next,
                              int64_t count) const;
  /// The drafts of a DFlash block of `size` slots whose anchor is `token`, after `states`.
  std::vector<int32_t> dflash(const Rows& states, int32_t token, int64_t size) const;

 private:
  struct KeyValue {
    Row key, value;
  };

  const std::vector<double>& weight(const std::string& name) const { return weights_.at(name); }
  Row product(const std::string& name, const Row& x) const;
  Row norm(const std::string& name, const Row& x) const;
  void head_norms(const std::string& name, Row& x) const;
  void rotate(Row& x, int64_t position) const;
  Row embedded(int32_t token) const;
  Row fused(const Row& states) const;
  Row mlp(const std::string& prefix, const Row& x) const;
  KeyValue key_value(const std::string& prefix, const Row& x, int64_t position) const;
  Row attend(const Row& query, const std::vector<KeyValue>& seen) const;
  int32_t choose(const Row& normed) const;

  DrafterConfig config_;
  std::vector<int32_t> draft_ids_;
  std::map<std::string, std::vector<double>> weights_;
  std::vector<double> embedding_;
};

}  // namespace percheron

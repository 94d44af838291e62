#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace percheron {

/// Tells which of a target's states a slot of captured features holds: one slot, row by row. States
/// are numbered as in drafter.capture, and `layers + 1` is the last one after the final norm.
class StateMatch {
 public:
  /// How far a slot may be from the state that it holds. Stored as bf16 a state is 0.0016 off; an
  /// engine that keeps its stream in bf16 rounds twice a layer, which adds up as a random walk to
  /// 0.02 after 80 layers, and its products and quantized weights add more. Neighbouring states
  /// are some 0.2 to 0.7 apart, those of other models or rows about 1.
  static constexpr double kErrorMax = 0.2;
  /// bf16's step: what is nearer can't be told apart once stored.
  static constexpr double kRounding = 1.0 / 256;
  /// A state that is more than so many times nearer than the stated one is the true one. This
  /// decides between neighbours, whatever an engine's roundings are.
  static constexpr double kNearer = 2;

  /// `final_norm` [H] is borrowed; `epsilon` is the norm's.
  StateMatch(int64_t layers, std::span<const float> final_norm, double epsilon);

  /// live: [layers + 1, H] the target's states of a row; held: [H] what the slot has of it.
  void add_row(std::span<const float> live, std::span<const float> held);

  /// |held - state| / max(|held|, |state|), from 0 to 2: the median over the rows, because the
  /// first rows of a text are large and alike after every layer, and a row that a router sends to
  /// another expert differs alone.
  double error(int64_t state) const;
  int64_t nearest() const;
  /// Whether the slot holds `state`, as far as the rows can tell.
  bool holds(int64_t state) const;

 private:
  std::span<const float> final_norm_;
  double epsilon_ = 0;
  std::vector<std::vector<double>> errors_;  // [layers + 2] of each row
};

}  // namespace percheron

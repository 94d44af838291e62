#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ranges>
#include <string>
#include <vector>

#include "model/drafter.h"
#include "tests/model/toy_model.h"

namespace percheron {

/// Copies each gradient when it is told to be complete, by a stream of its own that waits for what
/// is in the pass's stream by then and for nothing else.
class GradientWatch final : public GradientListener {
 public:
  GradientWatch(TestDevice& device, Drafter& drafter) : device_(device), drafter_(drafter) {
    Device& of = device.context().device;
    stream_ = of.make_stream();
    event_ = of.make_event();
    drafter.set_gradient_listener(this);
  }
  ~GradientWatch() override { drafter_.set_gradient_listener(nullptr); }

  void complete(Context& context, const Parameter& parameter) override {
    context.stream.record(*event_);
    stream_->wait_for(*event_);
    const TensorView gradient = parameter.gradient.view();
    std::vector<float> values(static_cast<size_t>(gradient.elements()));
    context.device.copy_bytes(*stream_, values.data(), gradient.data(), gradient.bytes());
    EXPECT_TRUE(stream_->wait_idle().ok());
    told_.push_back({&parameter, std::move(values)});
  }

  /// After a pass: every trained parameter was told once, with the gradient that it has in the end.
  void expect_whole() {
    size_t trained = 0;
    for (const auto& parameter : drafter_.parameters()) trained += parameter->trainable ? 1 : 0;
    EXPECT_EQ(told_.size(), trained);
    for (const Told& told : told_) {
      EXPECT_EQ(device_.floats(told.parameter->gradient), told.values) << told.parameter->name;
    }
  }
  /// What was told, in parts as checkpoints name them ("layers.1", "fc"), each once: the pass came
  /// from the last to the first.
  void expect_deepest_first() {
    std::vector<std::string> parts, declared;
    for (const Told& told : told_) add_part(parts, told.parameter->name);
    for (const auto& parameter : std::views::reverse(drafter_.parameters())) {
      if (parameter->trainable) add_part(declared, parameter->name);
    }
    EXPECT_EQ(parts, declared);
  }

 private:
  struct Told {
    const Parameter* parameter;
    std::vector<float> values;
  };
  static void add_part(std::vector<std::string>& parts, const std::string& name) {
    const size_t dot = name.find('.', name.starts_with("layers.") ? 7 : 0);
    const std::string part = name.substr(0, dot);
    if (parts.empty() || parts.back() != part) parts.push_back(part);
  }

  TestDevice& device_;
  Drafter& drafter_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> event_;
  std::vector<Told> told_;
};

}  // namespace percheron

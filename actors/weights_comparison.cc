#include "actors/weights_comparison.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace percheron {
namespace {

std::string comparison_text(const RunSetup& setup, const WeightsComparison& comparison,
                            double seconds) {
  const std::string over =
      fmt::format("{} {} tokens", format_count(static_cast<uint64_t>(comparison.tokens)),
                  setup.data.held_out ? "held-out" : "training");
  const std::string states =
      fmt::format("hidden states of captured layers differ by {:.2g} % (relative L2)",
                  100 * comparison.state_difference);
  if (comparison.same_top1 < 0) {
    return fmt::format("{} from full weights over {}, compared in {:.1f} s", states, over, seconds);
  }
  return fmt::format(
      "top-1 agreement with full weights {:.1f} % over {}, {}; compared in {:.1f} s",
      100.0 * static_cast<double>(comparison.same_top1) / static_cast<double>(comparison.tokens),
      over, states, seconds);
}

}  // namespace

PackedSequences comparison_rows(const RunSetup& setup) {
  const RunData& data = setup.data;
  const SampleSelection& chosen = data.held_out ? data.held_out_selection : data.selection;
  const TokenDataset& dataset = data.held_out ? *data.held_out : *data.train;
  auto left = static_cast<size_t>(setup.config.target().compare_tokens());
  PackedSequences rows;
  rows.offsets.push_back(0);
  for (size_t i = 0; i < chosen.samples.size() && left > 0; ++i) {
    const size_t length = std::min(left, static_cast<size_t>(chosen.lengths[i]));
    const auto tokens = dataset.tokens(chosen.samples[i]).first(length);
    rows.token_ids.insert(rows.token_ids.end(), tokens.begin(), tokens.end());
    rows.offsets.push_back(static_cast<int32_t>(rows.token_ids.size()));
    left -= length;
  }
  return rows;
}

Result<std::optional<WeightsReport>> compare_target_weights(const RunSetup& setup,
                                                            DeviceWorker& worker, Target& target,
                                                            const Clock& clock) {
  if (setup.target_weights == WeightFormat::kFull) return std::optional<WeightsReport>();
  WeightsReport report;
  report.text = fmt::format("target weights: {}, one scale per output channel",
                            weight_format_name(setup.target_weights));
  const PackedSequences rows = comparison_rows(setup);
  if (rows.token_ids.empty()) return std::optional<WeightsReport>(std::move(report));
  const int64_t begin_ns = clock.monotonic_ns();
  PERCHERON_RETURN_IF_ERROR(worker.run([&](Context& context) -> Status {
    PERCHERON_ASSIGN_OR_RETURN(report.comparison, target.compare_weights(context, rows));
    return ok_status();
  }));
  const double seconds = static_cast<double>(clock.monotonic_ns() - begin_ns) * 1e-9;
  report.text += "; " + comparison_text(setup, *report.comparison, seconds);
  return std::optional<WeightsReport>(std::move(report));
}

}  // namespace percheron

#include "tools/run_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "actors/node/run_book.h"
#include "base/units.h"

namespace percheron {
namespace {

std::string progress(const proto::RunReport& report) {
  if (report.steps_total() == 0) return "-";
  return fmt::format("{}/{}", report.step(), report.steps_total());
}

std::string number(double value, int digits) {
  return value > 0 ? fmt::format("{:.{}f}", value, digits) : "-";
}

}  // namespace

std::string run_table(const proto::ControlReply& reply) {
  if (reply.runs().empty()) return "no runs\n";
  size_t width = 3;
  for (const proto::RunRecord& run : reply.runs()) width = std::max(width, run.id().size());
  std::string text = fmt::format("{:{}}  {:10} {:>12} {:>8} {:>7} {:>9}  {}\n", "run", width,
                                 "state", "step", "loss", "accept", "tokens/s", "eta");
  for (const proto::RunRecord& run : reply.runs()) {
    const proto::RunReport& report = run.report();
    const bool moving = report.state() == proto::RunReport::RUNNING && report.eta_seconds() > 0;
    text +=
        fmt::format("{:{}}  {:10} {:>12} {:>8} {:>7} {:>9}  {}\n", run.id(), width,
                    state_name(report.state()), progress(report), number(report.loss(), 3),
                    number(report.acceptance_length(), 3), number(report.tokens_per_second(), 0),
                    moving ? format_duration(report.eta_seconds()) : "-");
    if (!report.message().empty()) text += fmt::format("{:{}}  {}\n", "", width, report.message());
  }
  return text;
}

nlohmann::ordered_json runs_json(const proto::ControlReply& reply) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const proto::RunRecord& run : reply.runs()) {
    const proto::RunReport& report = run.report();
    runs.push_back({{"run", run.id()},
                    {"node", run.node()},
                    {"state", state_name(report.state())},
                    {"message", report.message()},
                    {"output", run.config().output().directory()},
                    {"submitted", run.submitted()},
                    {"ended", run.ended()},
                    {"supervisor_restarts", run.supervisor_restarts()},
                    {"step", report.step()},
                    {"steps_total", report.steps_total()},
                    {"epoch", report.epoch()},
                    {"loss", report.loss()},
                    {"acceptance_length_walk", report.acceptance_length()},
                    {"simulated_acceptance_length", report.simulated_acceptance_length()},
                    {"tokens_per_second", report.tokens_per_second()},
                    {"target_tokens_per_second", report.target_tokens_per_second()},
                    {"trainer_tokens_per_second", report.trainer_tokens_per_second()},
                    {"wait_share", report.wait_share()},
                    {"feature_bytes", report.feature_bytes()},
                    {"feature_bytes_max", report.feature_bytes_max()},
                    {"steals", report.steals()},
                    {"eta_seconds", report.eta_seconds()},
                    {"latest_checkpoint", report.latest_checkpoint()}});
  }
  return {{"runs", runs}};
}

}  // namespace percheron

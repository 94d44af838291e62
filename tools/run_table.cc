#include "tools/run_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

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

std::string device_text(const proto::DeviceRecord& device) {
  const proto::DeviceFacts& facts = device.facts();
  std::string text = facts.description();
  const auto add = [&text](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  if (facts.threads() > 0) {
    add(fmt::format("{} thread{}", facts.threads(), facts.threads() == 1 ? "" : "s"));
  }
  if (facts.has_memory_used_bytes()) {
    add(format_bytes(facts.memory_used_bytes()) + " of " + format_bytes(facts.memory_bytes()) +
        " in use");
  } else if (facts.memory_bytes() > 0) {
    add(format_bytes(facts.memory_bytes()));
  }
  if (facts.has_power_watts()) add(fmt::format("{:.0f} W", facts.power_watts()));
  if (facts.has_utilization()) add(fmt::format("{:.0f}% busy", 100 * facts.utilization()));
  if (facts.has_temperature_celsius()) add(fmt::format("{} C", facts.temperature_celsius()));
  return text;
}

using Json = nlohmann::ordered_json;

Json workers_json(const proto::RunReport& report) {
  Json workers = Json::array();
  for (const proto::WorkerState& worker : report.workers()) {
    Json actors = Json::array();
    for (const proto::ActorState& actor : worker.actors()) {
      actors.push_back(
          {{"role", actor.role() == proto::ActorMessage::TARGET ? "target" : "trainer"},
           {"number", actor.number()},
           {"device", actor.has_device() ? actor.device() : worker.device()},
           {"occupation", actor.occupation()},
           {"busy_seconds", actor.busy_seconds()},
           {"wait_seconds", actor.wait_seconds()},
           {"samples", actor.samples()}});
    }
    workers.push_back({{"node", worker.node()},
                       {"device", worker.device()},
                       {"state", worker.state()},
                       {"restarts", worker.restarts()},
                       {"actors", actors}});
  }
  return workers;
}

// What its actors do; all of it goes on from the start of its supervisor.
void add_activity(const proto::RunReport& report, Json& run) {
  run["phase"] = report.phase();
  run["bottleneck"] = report.bottleneck();
  run["activity_seconds"] = report.activity_seconds();
  run["capture_samples_per_second"] = report.capture_samples_per_second();
  run["train_samples_per_second"] = report.train_samples_per_second();
  run["lease_expirations"] = report.lease_expirations();
  run["queued_later"] = report.queued_later();
  Json homes = Json::array(), steals = Json::array();
  for (const proto::HomeState& home : report.homes()) {
    homes.push_back({{"home", home.home()}, {"tickets", home.tickets()}, {"bytes", home.bytes()}});
  }
  for (const proto::StealCount& steal : report.steal_pairs()) {
    steals.push_back(
        {{"thief", steal.thief()}, {"victim", steal.victim()}, {"count", steal.count()}});
  }
  run["homes"] = homes;
  run["steal_pairs"] = steals;
  run["workers"] = workers_json(report);
}

Json nodes_json(const proto::ControlReply& reply) {
  Json nodes = Json::array();
  for (const proto::NodeRecord& node : reply.nodes()) {
    Json devices = Json::array();
    for (const proto::DeviceRecord& device : node.devices()) {
      const proto::DeviceFacts& facts = device.facts();
      Json entry = {{"device", device.device()}, {"run", device.run()}};
      if (facts.has_description()) entry["description"] = facts.description();
      if (facts.has_threads()) entry["threads"] = facts.threads();
      if (facts.has_memory_bytes()) entry["memory_bytes"] = facts.memory_bytes();
      if (facts.has_memory_used_bytes()) entry["memory_used_bytes"] = facts.memory_used_bytes();
      if (facts.has_power_watts()) entry["power_watts"] = facts.power_watts();
      if (facts.has_utilization()) entry["utilization"] = facts.utilization();
      if (facts.has_temperature_celsius()) {
        entry["temperature_celsius"] = facts.temperature_celsius();
      }
      devices.push_back(std::move(entry));
    }
    nodes.push_back({{"node", node.name()},
                     {"address", node.address()},
                     {"reachable", node.reachable()},
                     {"drained", node.drained()},
                     {"devices", devices}});
  }
  return nodes;
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
    if (run_is_over(report.state())) continue;
    for (const std::string& note : report.notes()) {
      text += fmt::format("{:{}}  {}\n", "", width, note);
    }
  }
  return text;
}

std::string node_table(const proto::ControlReply& reply) {
  size_t width = 5;
  for (const proto::NodeRecord& node : reply.nodes()) {
    for (const proto::DeviceRecord& device : node.devices()) {
      width = std::max(width, device.device().size());
    }
  }
  std::string text;
  for (const proto::NodeRecord& node : reply.nodes()) {
    text += "node " + (node.name().empty() ? node.address() : node.name());
    if (!node.reachable()) {
      text += ": out of reach\n";
    } else {
      text += node.drained() ? " is drained\n" : "\n";
    }
    for (const proto::DeviceRecord& device : node.devices()) {
      const std::string what = device_text(device);
      text += fmt::format("  {:{}}  {}{}{}\n", device.device(), width,
                          device.run().empty() ? "free" : "run " + device.run(),
                          what.empty() ? "" : "  ", what);
    }
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
    runs.back()["notes"] = std::vector<std::string>(report.notes().begin(), report.notes().end());
    add_activity(report, runs.back());
  }
  return {{"runs", runs}, {"nodes", nodes_json(reply)}};
}

}  // namespace percheron

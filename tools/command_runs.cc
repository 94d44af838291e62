// What operators say to a node about runs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors/node/run_book.h"
#include "base/file_system.h"
#include "base/units.h"
#include "tools/commands.h"
#include "tools/node_access.h"
#include "tools/printer.h"
#include "tools/run_config.h"
#include "tools/run_table.h"

namespace percheron {
namespace {

constexpr auto kFollowInterval = std::chrono::milliseconds(500);

struct RunArguments {
  NodeAccess at;
  std::string run;
  std::string config, name, device;
  std::vector<std::string> overrides;
  std::vector<std::string> targets, trainers;  // "+node/cuda:0" or "-node/cuda:0"
  double timeout = std::chrono::duration<double>(kOrderTimeout).count();
  std::string drained;  // a node
  bool undo = false;
  bool json = false, follow = false, now = false, release_devices = false;
};
using ArgumentsPtr = std::shared_ptr<RunArguments>;

std::string absolute(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path full = std::filesystem::absolute(path, ignored);
  return path.empty() || full.empty() ? path : full.lexically_normal().string();
}

/// A node has another working directory.
void make_paths_absolute(proto::Run& run) {
  const auto mend = [](std::string* path) { *path = absolute(*path); };
  mend(run.mutable_target()->mutable_path());
  mend(run.mutable_output()->mutable_directory());
  for (auto* list : {run.mutable_data()->mutable_train(), run.mutable_data()->mutable_held_out(),
                     run.mutable_features()->mutable_from()}) {
    for (std::string& path : *list) mend(&path);
  }
  if (run.drafter().has_config()) mend(run.mutable_drafter()->mutable_config());
  if (run.drafter().has_init_from()) mend(run.mutable_drafter()->mutable_init_from());
  if (run.features().has_cache_directory()) {
    mend(run.mutable_features()->mutable_cache_directory());
  }
}

Status submit(const RunArguments& arguments) {
  PERCHERON_ASSIGN_OR_RETURN(
      proto::Run run, read_run_config(system_files(), arguments.config, arguments.overrides));
  make_paths_absolute(run);
  PERCHERON_ASSIGN_OR_RETURN(NodeClient node, arguments.at.connect());
  proto::ControlRequest request;
  *request.mutable_submit()->mutable_config() = run;
  request.mutable_submit()->set_name(arguments.name);
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, node.ask(std::move(request)));
  Printer out(stdout);
  if (arguments.json) {
    out.print("{}\n", nlohmann::ordered_json{{"run", reply.run()}}.dump());
  } else {
    out.print("submitted as {0}; `percheron status {0}` and `percheron logs -f {0}` show it\n",
              reply.run());
  }
  return out.status();
}

Status status(const RunArguments& arguments) {
  PERCHERON_ASSIGN_OR_RETURN(NodeClient node, arguments.at.connect());
  proto::ControlRequest request;
  request.mutable_list()->set_run(arguments.run);
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, node.ask(std::move(request)));
  Printer out(stdout);
  if (arguments.json) {
    out.write(runs_json(reply).dump(2) + "\n");
  } else {
    out.write(run_table(reply));
    if (arguments.run.empty()) out.write("\n" + node_table(reply));
  }
  return out.status();
}

Status order(const RunArguments& arguments, proto::RunOrder::Kind kind) {
  PERCHERON_ASSIGN_OR_RETURN(NodeClient node, arguments.at.connect());
  proto::ControlRequest request;
  request.mutable_order()->set_run(arguments.run);
  request.mutable_order()->mutable_order()->set_kind(kind);
  request.mutable_order()->mutable_order()->set_release_devices(arguments.release_devices);
  request.set_timeout_seconds(arguments.timeout);
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, node.ask(std::move(request)));
  Printer out(stdout);
  if (arguments.json) {
    const nlohmann::ordered_json json{
        {"run", arguments.run}, {"step", reply.step()}, {"text", reply.text()}};
    out.print("{}\n", json.dump());
  } else {
    out.print("run {} {} (step {})\n", arguments.run, reply.text(), reply.step());
  }
  return out.status();
}

/// Devices that are given as "+alpha/cuda:0" or "-alpha/cuda:0", several of one sign with commas.
Status read_signed(const char* option, const std::vector<std::string>& values,
                   google::protobuf::RepeatedPtrField<std::string>& added,
                   google::protobuf::RepeatedPtrField<std::string>& removed) {
  for (const std::string& value : values) {
    if (value.size() < 2 || (value.front() != '+' && value.front() != '-')) {
      return invalid_argument(
          fmt::format("{} {}: write +DEVICE to add it or -DEVICE to take it out", option, value));
    }
    for (size_t begin = 1; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      if (end == begin) {
        return invalid_argument(
            fmt::format("{} {}: names no device beside a comma", option, value));
      }
      (value.front() == '+' ? added : removed).Add(value.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return ok_status();
}

Status scale(const RunArguments& arguments) {
  proto::ControlRequest request;
  proto::OrderScale& order = *request.mutable_scale();
  order.set_run(arguments.run);
  order.set_timeout_seconds(arguments.timeout);
  proto::ScaleRun& change = *order.mutable_change();
  PERCHERON_RETURN_IF_ERROR(read_signed("--targets", arguments.targets,
                                        *change.mutable_add_targets(),
                                        *change.mutable_remove_targets()));
  PERCHERON_RETURN_IF_ERROR(read_signed("--trainers", arguments.trainers,
                                        *change.mutable_add_trainers(),
                                        *change.mutable_remove_trainers()));
  if (arguments.targets.empty() && arguments.trainers.empty()) {
    return invalid_argument("nothing is to be changed: give --targets or --trainers");
  }
  PERCHERON_ASSIGN_OR_RETURN(NodeClient node, arguments.at.connect());
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, node.ask(std::move(request)));
  Printer out(stdout);
  if (arguments.json) {
    const std::vector<std::string> targets(reply.targets().begin(), reply.targets().end());
    const std::vector<std::string> trainers(reply.trainers().begin(), reply.trainers().end());
    const nlohmann::ordered_json json{{"run", arguments.run},
                                      {"step", reply.step()},
                                      {"text", reply.text()},
                                      {"targets", targets},
                                      {"trainers", trainers}};
    out.print("{}\n", json.dump());
  } else {
    out.print("run {} {} (step {})\n", arguments.run, reply.text(), reply.step());
  }
  return out.status();
}

Status drain(const RunArguments& arguments) {
  PERCHERON_ASSIGN_OR_RETURN(NodeClient node, arguments.at.connect());
  proto::ControlRequest request;
  request.mutable_drain()->set_node(arguments.drained);
  request.mutable_drain()->set_undo(arguments.undo);
  request.set_timeout_seconds(arguments.timeout);
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, node.ask(std::move(request)));
  Printer out(stdout);
  if (arguments.json) {
    const nlohmann::ordered_json json{{"node", arguments.drained}, {"text", reply.text()}};
    out.print("{}\n", json.dump());
  } else {
    out.print("node {} {}\n", arguments.drained, reply.text());
  }
  return out.status();
}

Result<bool> run_is_going(NodeClient& node, const std::string& run) {
  proto::ControlRequest request;
  request.mutable_list()->set_run(run);
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, node.ask(std::move(request)));
  return !run_is_over(reply.runs(0).report().state());
}

Status logs(const RunArguments& arguments) {
  PERCHERON_ASSIGN_OR_RETURN(NodeClient node, arguments.at.connect());
  Printer out(stdout);
  uint64_t offset = 0;
  bool last = !arguments.follow, told = false;
  while (true) {
    proto::ControlRequest request;
    request.mutable_log()->set_run(arguments.run);
    request.mutable_log()->set_device(arguments.device);
    request.mutable_log()->set_offset(offset);
    PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, node.ask(std::move(request)));
    if (!reply.text().empty()) {
      if (!arguments.follow) return failed_precondition(reply.text());
      if (!told) std::fprintf(stderr, "(%s)\n", reply.text().c_str());
      told = true;
    }
    if (const uint64_t begin = reply.log_end() - reply.log().size(); begin > offset) {
      std::fprintf(stderr, "(%s here are no longer kept)\n", format_bytes(begin - offset).c_str());
    }
    out.write(reply.log());
    std::fflush(stdout);
    PERCHERON_RETURN_IF_ERROR(out.status());
    offset = reply.log_end();
    if (!reply.log().empty()) continue;
    if (last) return ok_status();
    // What was written before the end is read once more after it.
    PERCHERON_ASSIGN_OR_RETURN(const bool going, run_is_going(node, arguments.run));
    last = !going;
    if (going) std::this_thread::sleep_for(kFollowInterval);
  }
}

CLI::App* add_command(CLI::App& app, Command& chosen, const char* name, const char* description,
                      const ArgumentsPtr& arguments, Status (*work)(const RunArguments&)) {
  CLI::App* command = app.add_subcommand(name, description);
  arguments->at.add_options(command);
  command->callback(
      [arguments, work, &chosen] { chosen = [arguments, work] { return work(*arguments); }; });
  return command;
}

void add_json(CLI::App* command, const ArgumentsPtr& arguments) {
  command->add_flag("--json", arguments->json, "Print JSON");
}

void add_timeout(CLI::App* command, const ArgumentsPtr& arguments) {
  command
      ->add_option("--timeout", arguments->timeout,
                   "Seconds to wait until it is so; the order stands after that")
      ->check(CLI::Range(1.0, arguments->timeout))
      ->capture_default_str();
}

void add_placement_commands(CLI::App& app, Command& chosen, const ArgumentsPtr& arguments) {
  CLI::App* command = add_command(app, chosen, "scale", "Give a run other devices while it goes on",
                                  arguments, scale);
  command->add_option("run", arguments->run, "The run")->required();
  command
      ->add_option("--targets", arguments->targets,
                   "+NODE/cuda:0 adds a target there, -NODE/cuda:0 takes it out, "
                   "+NODE/cuda:0,NODE/cuda:1 adds one on both with placement.tensor_parallel: 2; "
                   "may be repeated")
      ->allow_extra_args(false);
  command->add_option("--trainers", arguments->trainers, "Likewise of trainers")
      ->allow_extra_args(false);
  add_timeout(command, arguments);
  add_json(command, arguments);

  command = add_command(app, chosen, "drain", "Take all runs off a node, which takes none then",
                        arguments, drain);
  command->add_option("name", arguments->drained, "The node")->required();
  command->add_flag("--undo", arguments->undo, "It takes workers again");
  add_timeout(command, arguments);
  add_json(command, arguments);
}

}  // namespace

void add_run_commands(CLI::App& app, Command& chosen) {
  const auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = add_command(app, chosen, "submit", "Give a run to a node", arguments, submit);
  command->add_option("-c,--config", arguments->config, "The run's configuration in YAML")
      ->required();
  command->add_option("--name", arguments->name,
                      "The run's name; default: the last part of output.directory");
  command->add_option("overrides", arguments->overrides,
                      "Settings that replace the file's: section.key=value ...");
  add_json(command, arguments);

  command = add_command(app, chosen, "status", "Show runs, nodes and devices", arguments, status);
  command->add_option("run", arguments->run, "Only this run");
  add_json(command, arguments);

  command =
      add_command(app, chosen, "pause", "Stop a run after its step, to go on later", arguments,
                  [](const RunArguments& a) { return order(a, proto::RunOrder::PAUSE); });
  command->add_option("run", arguments->run, "The run")->required();
  command->add_flag("--release-devices", arguments->release_devices,
                    "Write a checkpoint and give the devices to others meanwhile");
  add_timeout(command, arguments);
  add_json(command, arguments);

  command =
      add_command(app, chosen, "resume", "Let a paused, stopped or failed run go on", arguments,
                  [](const RunArguments& a) { return order(a, proto::RunOrder::RESUME); });
  command->add_option("run", arguments->run, "The run")->required();
  add_timeout(command, arguments);
  add_json(command, arguments);

  command = add_command(app, chosen, "snapshot", "Write a checkpoint after a run's step", arguments,
                        [](const RunArguments& a) { return order(a, proto::RunOrder::SNAPSHOT); });
  command->add_option("run", arguments->run, "The run")->required();
  add_timeout(command, arguments);
  add_json(command, arguments);

  command = add_command(
      app, chosen, "stop", "End a run, after a checkpoint", arguments, [](const RunArguments& a) {
        return order(a, a.now ? proto::RunOrder::STOP_NOW : proto::RunOrder::STOP);
      });
  command->add_option("run", arguments->run, "The run")->required();
  command->add_flag("--now", arguments->now,
                    "At once: the steps since the last checkpoint are lost");
  add_timeout(command, arguments);
  add_json(command, arguments);

  add_placement_commands(app, chosen, arguments);

  command = add_command(app, chosen, "logs", "Print what a run has said", arguments, logs);
  command->add_option("run", arguments->run, "The run")->required();
  command->add_option("--device", arguments->device,
                      "Of the process of this device, as NODE/cpu:0, not of the run's supervisor");
  command->add_flag("-f,--follow", arguments->follow, "Go on until the run ends");
}

}  // namespace percheron

// The processes that a node starts for a run. Not for people: the node gives each a socket.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "actors/node/linked_process.h"
#include "actors/node/process_output.h"
#include "actors/service/heartbeat.h"
#include "actors/service/run_owner.h"
#include "actors/service/run_reporter.h"
#include "actors/service/supervisor_process.h"
#include "actors/service/worker_process.h"
#include "base/log.h"
#include "tools/commands.h"
#include "tools/metrics_file.h"
#include "tools/observer_list.h"
#include "tools/printer.h"
#include "tools/progress_line.h"
#include "tools/run_files.h"
#include "tools/run_report.h"
#include "tools/stop_signals.h"

namespace percheron {
namespace {

Result<std::unique_ptr<FrameChannel>> daemon_channel() {
  FileDescriptor socket(LinkedProcess::kLinkDescriptor);
  Result<std::unique_ptr<FrameChannel>> channel =
      unix_channel(std::move(socket), "the daemon of this node");
  if (channel.ok()) return channel;
  return failed_precondition("this command is started by `percheron node` alone (" +
                             channel.status().message() + ")");
}

Status run_worker_process() {
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<FrameChannel> daemon, daemon_channel());
  return run_worker(std::move(daemon), system_files(), system_clock());
}

/// Passes a run on to its daemon, beside another observer.
class Forwarding final : public RunObserver {
 public:
  explicit Forwarding(RunReporter& reporter) : reporter_(reporter) {}
  void on_step(const StepReport& report) override { reporter_.on_step(report); }
  void on_evaluation(const EvaluationReport& report) override { reporter_.on_evaluation(report); }
  void on_checkpoint(const CheckpointReport& report) override { reporter_.on_checkpoint(report); }
  void on_state(const StateReport& report) override { reporter_.on_state(report); }

 private:
  RunReporter& reporter_;
};

Result<RunSummary> start_and_run(ServiceRun& run, RunReporter& reporter, FileSystem& files) {
  ObserverList observers;
  observers.add(
      std::make_unique<ProgressLine>(stdout, ProgressLine::Style::kPlain, system_clock()));
  StartEvents start(observers);
  const auto activity = std::make_shared<RunActivity>(system_clock());
  reporter.set_activity(activity);
  const ReportTicks ticks(reporter);
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<RunParts> parts,
      run.start_workers(RunEnvironment{.files = files,
                                       .clock = system_clock(),
                                       .observer = start,
                                       .stop_signals = run.orders().stop_signals(),
                                       .activity = activity}));
  if (!parts->weights_note.empty()) reporter.add_note(parts->weights_note);
  PERCHERON_RETURN_IF_ERROR(add_run_files(files, run.setup()->config, start.texts(), observers));
  observers.add(std::make_unique<Forwarding>(reporter));
  reporter.set_state(proto::RunReport::RUNNING);
  return run.run(*parts, RunEnvironment{.files = files,
                                        .clock = system_clock(),
                                        .observer = observers,
                                        .stop_signals = run.orders().stop_signals(),
                                        .activity = activity});
}

/// Measures the drafter of a run that is done, where its first target's device is of this node.
Status report(ServiceRun& run, const RunSummary& summary) {
  Printer out(stdout);
  if (!run.measures_here()) {
    out.print(
        "no report: the first target's device is of another node, or was taken out; "
        "`percheron evaluate` measures the drafter\n");
    return out.status();
  }
  run.end_workers();
  const Result<std::string> path =
      report_run(run.setup(), summary, system_files(),
                 [&out](const std::string& text) { out.write(text + "\n"); });
  PERCHERON_RETURN_IF_ERROR(path.status());
  if (!path->empty()) out.print("report:  {}\n", *path);
  return out.status();
}

/// Tells the daemon why the run ends. Whoever went away may come back: then the daemon starts it
/// again. Everything else is final.
Status end_with(const Status& error, const proto::StartSupervisor& order, RunReporter& reporter,
                FrameLink& daemon) {
  const std::string& output = order.config().output().directory();
  const Status own = check_run_owner(system_files(), output, {order.generation(), order.node()});
  if (own.code() == StatusCode::kFailedPrecondition) {
    const Result<std::optional<RunOwner>> owner = read_run_owner(system_files(), output);
    if (owner.ok() && *owner) reporter.set_moved((*owner)->node);
  }
  const bool again = error.code() == StatusCode::kUnavailable;
  reporter.set_state(again ? proto::RunReport::RECOVERING : proto::RunReport::FAILED,
                     error.message());
  daemon.flush();
  return error;
}

Status supervise(FrameLink& daemon, const proto::StartSupervisor& order, RunReporter& reporter) {
  const Result<std::unique_ptr<ServiceRun>> made =
      ServiceRun::make(daemon, order, system_files(), system_clock());
  if (!made.ok()) return end_with(made.status(), order, reporter, daemon);
  ServiceRun* const run = made->get();  // It closes the link when it goes.
  reporter.set_workers([&run] { return run->workers(); });
  const Result<RunSummary> summary = start_and_run(*run, reporter, system_files());
  reporter.set_workers(nullptr);
  if (summary.status().code() == StatusCode::kCancelled && run->orders().stops_now()) {
    reporter.set_state(proto::RunReport::STOPPED, "at once, without a checkpoint");
    run->orders().on_end("is stopped, without a checkpoint", 0);
    daemon.flush();
    return ok_status();
  }
  if (!summary.ok()) {
    run->orders().on_end("has ended: " + summary.status().message(), 0);
    return end_with(summary.status(), order, reporter, daemon);
  }
  if (!summary->stopped_early) {
    const Status reported = report(*run, *summary);
    if (!reported.ok()) log_error("no report: {}", reported.message());
    reporter.set_state(proto::RunReport::DONE,
                       "drafter: " + (summary->best_checkpoint.empty() ? summary->latest_checkpoint
                                                                       : summary->best_checkpoint));
  } else if (run->orders().releases_devices()) {
    reporter.set_state(proto::RunReport::PAUSED, "its devices are given back");
  } else {
    reporter.set_state(proto::RunReport::STOPPED, "after a checkpoint");
  }
  run->orders().on_end(
      run->orders().releases_devices() ? "is paused; its devices are given back" : "is stopped",
      summary->steps);
  daemon.flush();
  return ok_status();
}

Status run_supervisor_process() {
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<FrameChannel> channel, daemon_channel());
  FrameLink daemon(std::move(channel), system_clock());
  const Heartbeat heart(daemon);
  const Result<ReceivedFrame> first = daemon.receive();
  daemon.turn().rests();  // The run's own thread reads on, once there is one.
  if (!first.ok() || !first->frame.has_start_supervisor()) {
    return failed_precondition("this command is started by `percheron node` alone");
  }
  const proto::StartSupervisor& order = first->frame.start_supervisor();
  RunReporter reporter(system_clock(), [&](const proto::RunReport& report) {
    proto::Frame frame;
    frame.mutable_to()->set_node(order.node());
    frame.mutable_to()->set_kind(proto::Endpoint::DAEMON);
    *frame.mutable_report() = report;
    daemon.send(std::move(frame));
  });
  return supervise(daemon, order, reporter);
}

}  // namespace

void add_process_commands(CLI::App& app, Command& chosen) {
  const auto add = [&](const char* name, const char* description, Status (*work)()) {
    // Without a group it is not listed. What it works for is for those who look at processes.
    CLI::App* command = app.add_subcommand(name, description)->group("");
    command->add_option("of", "Run and device");
    command->callback([&chosen, work] {
      chosen = [work] {
        const OutputReopener reopener;
        return work();
      };
    });
  };
  add("worker", "The process of one device of a run", run_worker_process);
  add("supervisor", "The process that decides for a run", run_supervisor_process);
}

}  // namespace percheron

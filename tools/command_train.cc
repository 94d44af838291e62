#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "actors/run_plan.h"
#include "actors/train.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "tools/commands.h"
#include "tools/metrics_file.h"
#include "tools/progress_line.h"
#include "tools/run_config.h"
#include "tools/run_report.h"
#include "tools/stop_signals.h"
#include "tools/tensorboard_file.h"

namespace percheron {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  bool plan = false;
};

/// Passes everything on to several observers.
class ObserverList : public RunObserver {
 public:
  void add(std::unique_ptr<RunObserver> observer) { observers_.push_back(std::move(observer)); }

  void on_step(const StepReport& report) override {
    for (const auto& observer : observers_) observer->on_step(report);
  }
  void on_evaluation(const EvaluationReport& report) override {
    for (const auto& observer : observers_) observer->on_evaluation(report);
  }
  void on_checkpoint(const CheckpointReport& report) override {
    for (const auto& observer : observers_) observer->on_checkpoint(report);
  }
  void on_event(const std::string& text) override {
    for (const auto& observer : observers_) observer->on_event(text);
  }
  void on_end(const RunSummary& summary) override {
    for (const auto& observer : observers_) observer->on_end(summary);
  }

 private:
  std::vector<std::unique_ptr<RunObserver>> observers_;
};

Status add_sinks(FileSystem& files, const std::string& directory, ObserverList& observers) {
  PERCHERON_RETURN_IF_ERROR(files.create_directories(directory));
  PERCHERON_ASSIGN_OR_RETURN(
      std::unique_ptr<RunObserver> metrics,
      MetricsFile::open(files, system_clock(), join_path(directory, "metrics.jsonl")));
  observers.add(std::move(metrics));
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<RunObserver> events,
                             TensorboardFile::create(files, system_clock(), directory));
  observers.add(std::move(events));
  observers.add(std::make_unique<ProgressLine>(stdout, progress_style(stdout), system_clock()));
  return ok_status();
}

Status run_train(const TrainOptions& options) {
  FileSystem& files = system_files();
  PERCHERON_ASSIGN_OR_RETURN(const proto::Run run,
                             read_run_config(files, options.config, options.overrides));
  PERCHERON_ASSIGN_OR_RETURN(const std::shared_ptr<const RunSetup> setup, resolve_run(run, files));
  PERCHERON_ASSIGN_OR_RETURN(const RunPlan plan, plan_run(*setup, files));
  fmt::print("{}", plan.text());
  std::fflush(stdout);
  if (options.plan) return ok_status();
  ObserverList observers;
  PERCHERON_RETURN_IF_ERROR(add_sinks(files, run.output().directory(), observers));
  const RunEnvironment environment{files, system_clock(), observers, count_stop_signals()};
  PERCHERON_ASSIGN_OR_RETURN(const RunSummary summary, train(run, environment));
  if (summary.stopped_early) {
    fmt::print("the same command {}\n", summary.latest_checkpoint.empty()
                                            ? "starts the run; nothing was trained yet"
                                            : "goes on from " + summary.latest_checkpoint);
    return ok_status();
  }
  PERCHERON_RETURN_IF_ERROR(report_run(run, summary, files, [](const std::string& text) {
    fmt::print("{}\n", text), std::fflush(stdout);
  }));
  fmt::print("drafter: {}\nreport:  {}\n",
             summary.best_checkpoint.empty() ? summary.latest_checkpoint : summary.best_checkpoint,
             join_path(run.output().directory(), "report.html"));
  return ok_status();
}

}  // namespace

void add_train_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command =
      app.add_subcommand("train", "Train a drafter in this process, then measure it");
  command
      ->add_option("-c,--config", options->config,
                   "The run's configuration in YAML (deploy/demo/eagle3.yaml is one)")
      ->required();
  command->add_option("overrides", options->overrides,
                      "Settings that replace the file's: section.key=value ...");
  command->add_flag(
      "--plan", options->plan,
      "Only say what would be done: memory, steps, batches, bytes; refuse what can't fit");
  command->footer(
      "Ctrl-C or SIGTERM writes a checkpoint at the next step and ends; the same command goes on "
      "from there. "
      "proto/run.proto lists every setting with its default.");
  command->callback([options, &chosen] { chosen = [options] { return run_train(*options); }; });
}

}  // namespace percheron

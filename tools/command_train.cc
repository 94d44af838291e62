#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "actors/run_plan.h"
#include "actors/train.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "tools/commands.h"
#include "tools/observer_list.h"
#include "tools/plan_time.h"
#include "tools/printer.h"
#include "tools/progress_line.h"
#include "tools/run_config.h"
#include "tools/run_files.h"
#include "tools/run_metrics_page.h"
#include "tools/run_report.h"
#include "tools/stop_signals.h"

namespace percheron {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::string metrics;  // address; empty: not served
  bool plan = false;
};

/// Loads, then trains. Loading is ended by a signal as any program is: only the actors look at the
/// count, and there is nothing to save before them. The files come after everything that may still
/// refuse the run: the lock, the devices, the checkpoint to go on from.
/// `page` may be null.
Result<RunSummary> load_and_train(const std::shared_ptr<const RunSetup>& setup, FileSystem& files,
                                  const RunMetricsPage* page) {
  ObserverList observers;
  observers.add(std::make_unique<ProgressLine>(stdout, progress_style(stdout), system_clock()));
  if (page) observers.add(page->metrics());
  StartEvents start(observers);
  RunEnvironment loading{files, system_clock(), start, stop_signal_count()};
  if (page) loading.activity = page->activity();
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<RunParts> parts, make_run_parts(setup, loading));
  PERCHERON_RETURN_IF_ERROR(add_run_files(files, setup->config, start.texts(), observers));
  if (page) {
    const SampleSelection& selection = setup->data.selection;
    page->metrics()->begin({selection.too_long_skipped, selection.unsupervised_dropped,
                            parts->progress.step, setup->steps.steps()});
  }
  const CatchStopSignals catching;
  Result<RunSummary> summary =
      run_actors(*parts, RunEnvironment{files, system_clock(), observers, stop_signal_count()});
  if (page && !summary.ok()) page->metrics()->fail();
  return summary;
}

Status run_train(const TrainOptions& options) {
  FileSystem& files = system_files();
  Printer out(stdout);
  PERCHERON_ASSIGN_OR_RETURN(const proto::Run run,
                             read_run_config(files, options.config, options.overrides));
  PERCHERON_ASSIGN_OR_RETURN(const std::shared_ptr<const RunSetup> setup, resolve_run(run, files));
  PERCHERON_ASSIGN_OR_RETURN(const RunPlan plan, plan_run(*setup, files));
  out.write(plan.text() + plan_time(files, setup->output(), plan.steps));
  if (options.plan) return out.status();
  std::unique_ptr<RunMetricsPage> page;
  if (!options.metrics.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(page,
                               RunMetricsPage::start(options.metrics, *setup, system_clock()));
    out.write(page->text() + "\n");
  }
  PERCHERON_ASSIGN_OR_RETURN(const RunSummary summary, load_and_train(setup, files, page.get()));
  if (summary.stopped_early) {
    out.print("the same command {}\n", summary.latest_checkpoint.empty()
                                           ? "starts the run; nothing was trained yet"
                                           : "goes on from " + summary.latest_checkpoint);
    return ok_status();
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::string report,
                             report_run(setup, summary, files, [&out](const std::string& text) {
                               out.write(text + "\n");
                             }));
  out.print("drafter: {}\n",
            summary.best_checkpoint.empty() ? summary.latest_checkpoint : summary.best_checkpoint);
  if (!report.empty()) out.print("report:  {}\n", report);
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
  command->add_option("--metrics", options->metrics,
                      "Serve /metrics for Prometheus, /healthz and /readyz over HTTP while the run "
                      "lasts: PORT, for this machine alone, or ADDRESS:PORT; port 0 takes a free "
                      "one and says which. Default: not served (docs/monitoring.md)");
  command->footer(
      "While it trains, Ctrl-C or SIGTERM writes a checkpoint at the next step and ends; the same "
      "command goes on from there. "
      "proto/run.proto lists every setting with its default.");
  command->callback([options, &chosen] { chosen = [options] { return run_train(*options); }; });
}

}  // namespace percheron

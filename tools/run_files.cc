#include "tools/run_files.h"

#include <memory>

#include "base/clock.h"
#include "tools/metrics_file.h"
#include "tools/tensorboard_file.h"

namespace percheron {

Status add_run_files(FileSystem& files, const proto::Run& run, const std::vector<std::string>& said,
                     ObserverList& observers) {
  const std::string& directory = run.output().directory();
  const int64_t every_steps = run.train().log_every_steps();
  PERCHERON_ASSIGN_OR_RETURN(
      std::unique_ptr<RunObserver> metrics,
      MetricsFile::open(files, system_clock(), join_path(directory, "metrics.jsonl")));
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<RunObserver> events,
                             TensorboardFile::create(files, system_clock(), directory));
  for (const std::string& text : said) metrics->on_event(text);
  observers.add(std::move(metrics), every_steps);
  observers.add(std::move(events), every_steps);
  return ok_status();
}

}  // namespace percheron

#include "tools/metrics_file.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "tools/metric_names.h"

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;

Json with_scalars(Json line, const Scalars& scalars) {
  for (const auto& [name, value] : scalars) line[name] = value;
  return line;
}

/// Never throws: bytes of a path or a name that are no UTF-8 become U+FFFD.
std::string text_of(const Json& line) {
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Result<std::unique_ptr<MetricsFile>> MetricsFile::open(FileSystem& files, const Clock& clock,
                                                       const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.open_append(path));
  return std::unique_ptr<MetricsFile>(new MetricsFile(std::move(file), clock));
}

void MetricsFile::write(const std::string& line) {
  const std::string text = line + "\n";
  const Status status = file_->append(std::as_bytes(std::span<const char>(text)));
  if (!status.ok() && !failed_) {
    failed_ = true;
    log_warning("metrics.jsonl is incomplete from here on: {}", status.message());
  }
}

void MetricsFile::on_step(const StepReport& report) {
  const Json head{{"kind", "step"},
                  {"step", report.step},
                  {"epoch", report.epoch},
                  {"time", clock_.unix_seconds()}};
  write(text_of(with_scalars(head, step_scalars(report))));
}

void MetricsFile::on_evaluation(const EvaluationReport& report) {
  const Json head{{"kind", "evaluation"},
                  {"step", report.step},
                  {"time", clock_.unix_seconds()},
                  {"best", report.best}};
  write(text_of(with_scalars(head, evaluation_scalars(report))));
}

void MetricsFile::on_checkpoint(const CheckpointReport& report) {
  write(text_of(Json{{"kind", "checkpoint"},
                     {"step", report.step},
                     {"time", clock_.unix_seconds()},
                     {"directory", report.directory},
                     {"bytes", report.bytes},
                     {"seconds", report.seconds},
                     {"error", report.error}}));
}

void MetricsFile::on_event(const std::string& text) {
  write(text_of(Json{{"kind", "event"}, {"time", clock_.unix_seconds()}, {"text", text}}));
}

void MetricsFile::on_end(const RunSummary& summary) {
  Json line{{"kind", "end"},
            {"time", clock_.unix_seconds()},
            {"steps", summary.steps},
            {"tokens", summary.tokens},
            {"supervised_tokens", summary.supervised},
            {"seconds", summary.seconds},
            {"feature_seconds", summary.feature_seconds},
            {"train_seconds", summary.train_seconds},
            {"pool_bytes_peak", summary.pool_bytes_peak},
            {"stopped_early", summary.stopped_early}};
  for (const auto& [name, count] : summary.counters) line["counters"][name] = count;
  write(text_of(line));
}

}  // namespace percheron

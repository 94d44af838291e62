#include "actors/feature_capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "actors/capture_directory.h"
#include "actors/device_worker.h"
#include "actors/feature_maker.h"
#include "actors/policy/quarantine.h"
#include "actors/run_fingerprint.h"
#include "actors/tensor_parallel_target.h"
#include "actors/weights_comparison.h"
#include "base/units.h"
#include "model/target.h"
#include "model/target_files.h"

namespace percheron {
namespace {

std::string count(int64_t n) { return format_count(static_cast<uint64_t>(n)); }

/// One capture: devices take its units in order until none is left or one fails.
class CaptureJob {
 public:
  CaptureJob(std::shared_ptr<const RunSetup> setup, const CaptureOptions& options, CapturePlan plan,
             FileSystem& files, const Clock& clock, CaptureObserver& observer)
      : setup_(std::move(setup)),
        options_(options),
        plan_(std::move(plan)),
        files_(files),
        clock_(clock),
        observer_(observer),
        quarantine_(plan_.samples, 1.0) {}

  Result<CaptureSummary> run();

 private:
  struct Place {
    std::vector<std::unique_ptr<DeviceWorker>> workers;  // of a target's ranks; rank 0's makes
    std::unique_ptr<Target> target;                      // after the workers: goes first
    std::unique_ptr<FeatureMaker> maker;
  };

  Status load_targets();
  Status load_target(const std::vector<DeviceId>& group,
                     const std::shared_ptr<const TargetFiles>& files, const TargetOptions& options);
  Status look_at_directory();
  void work(Context& context, FeatureMaker& maker);
  std::optional<size_t> next_unit();
  Status capture_unit(Context& context, FeatureMaker& maker, size_t unit);
  /// The features of those of positions [begin, end) that can be captured; none for a pack in which
  /// nothing can.
  Result<FeaturesPtr> capture(Context& context, FeatureMaker& maker,
                              std::span<const size_t> positions);
  Status write_shard(Context& context, FeatureMaker& maker, size_t unit,
                     std::span<const size_t> positions);
  Status written(const std::string& name, int64_t samples, int64_t tokens);
  void wait();
  CaptureProgress progress() const;
  int64_t not_finite() const { return not_finite_before_ + quarantine_.count(); }

  const std::shared_ptr<const RunSetup> setup_;
  const CaptureOptions& options_;
  CapturePlan plan_;
  FileSystem& files_;
  const Clock& clock_;
  CaptureObserver& observer_;
  Quarantine quarantine_;
  std::optional<CaptureDirectory> directory_;
  std::vector<Place> places_;
  std::vector<bool> done_;  // by position in the selection: needs no capture
  int64_t not_finite_before_ = 0;
  int64_t begin_ns_ = 0, tokens_to_do_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;      // unit
  int64_t working_ = 0;  // devices
  bool news_ = false;
  Status failed_;
  CaptureSummary summary_;
  int64_t tokens_done_ = 0;
};

Status CaptureJob::load_targets() {
  TargetOptions options;
  options.compute_dtype = setup_->target_dtype;
  options.weights = setup_->target_weights;
  options.capture = setup_->drafter.capture;
  options.capture_last = plan_.shape.has_last;
  options.head = plan_.shape.has_top1;
  PERCHERON_ASSIGN_OR_RETURN(
      const std::shared_ptr<const TargetFiles> files,
      open_target_files(files_, setup_->config.target().path(), setup_->target));
  // A device that is named twice still takes its turns alone.
  const std::vector<std::vector<DeviceId>> named = setup_->placement.target_groups();
  for (const auto& group : std::set<std::vector<DeviceId>>(named.begin(), named.end())) {
    PERCHERON_RETURN_IF_ERROR(load_target(group, files, options));
  }
  const Place& first = places_.front();
  PERCHERON_ASSIGN_OR_RETURN(
      const std::optional<WeightsReport> report,
      compare_target_weights(*setup_, *first.workers.front(), *first.target, clock_));
  if (report) observer_.on_event(report->text);
  return ok_status();
}

Status CaptureJob::load_target(const std::vector<DeviceId>& group,
                               const std::shared_ptr<const TargetFiles>& files,
                               const TargetOptions& options) {
  Place& place = places_.emplace_back();
  std::vector<DeviceWorker*> workers;
  for (const DeviceId id : group) {
    Result<std::unique_ptr<DeviceWorker>> worker =
        DeviceWorker::start(id, setup_->placement.device_options(), clock_);
    if (!worker.ok()) return worker.status().with_context("placement.targets");
    place.workers.push_back(std::move(worker).value());
    workers.push_back(place.workers.back().get());
  }
  if (group.size() > 1) {
    PERCHERON_ASSIGN_OR_RETURN(place.target,
                               TensorParallelTarget::load(files, workers, options, {}));
  } else {
    PERCHERON_RETURN_IF_ERROR(workers.front()->run([&](Context& context) -> Status {
      PERCHERON_ASSIGN_OR_RETURN(place.target, Target::load(files, context, options));
      return ok_status();
    }));
  }
  place.maker =
      std::make_unique<TargetFeatureMaker>(*place.target, nullptr, quarantine_, plan_.shape, "");
  return ok_status();
}

Status CaptureJob::look_at_directory() {
  const std::string& target_hash = places_.front().target->weights_hash();
  plan_.origin.fingerprint = feature_fingerprint(*setup_, target_hash);
  PERCHERON_ASSIGN_OR_RETURN(
      CaptureDirectory opened,
      CaptureDirectory::open(files_, options_, capture_settings(*setup_, options_, target_hash)));
  directory_.emplace(std::move(opened));
  CapturedFiles captured;
  PERCHERON_ASSIGN_OR_RETURN(captured, find_captured(files_, *setup_, options_, plan_));
  done_ = std::move(captured.done);
  not_finite_before_ = captured.not_finite;
  summary_.found = captured.samples_whole;
  summary_.remade = captured.damaged;
  for (const CaptureUnit& unit : plan_.units) {
    for (size_t i = unit.begin; i < unit.end; ++i) {
      if (!done_[i]) tokens_to_do_ += setup_->data.selection.lengths[i];
    }
  }
  if (summary_.found > 0) {
    observer_.on_event(fmt::format("{} of {} samples are there already and are kept",
                                   count(summary_.found), count(plan_.samples)));
  }
  if (captured.damaged > 0) {
    observer_.on_event(
        fmt::format("{} samples have files that are damaged or of another length: they are "
                    "captured again",
                    count(captured.damaged)));
  }
  if (captured.not_finite > 0) {
    observer_.on_event(
        fmt::format("{} samples were left out by an earlier start: a state is not finite",
                    count(captured.not_finite)));
  }
  PERCHERON_ASSIGN_OR_RETURN(const uint64_t free, files_.free_bytes(options_.directory));
  const uint64_t need = plan_.bytes - std::min(plan_.bytes, captured.bytes);
  if (need <= free) return ok_status();
  return resource_exhausted(fmt::format(
      "{} more of features are to be written to {}, its disk has {} left: free some, or "
      "capture less with --bytes-max and --partial",
      format_bytes(need), options_.directory, format_bytes(free)));
}

std::optional<size_t> CaptureJob::next_unit() {
  const std::lock_guard lock(mutex_);
  if (!failed_.ok() || next_ == plan_.units.size()) return std::nullopt;
  return next_++;
}

Result<FeaturesPtr> CaptureJob::capture(Context& context, FeatureMaker& maker,
                                        std::span<const size_t> positions) {
  const SampleSelection& chosen = setup_->data.selection;
  MicroBatch batch;
  batch.offsets = {0};
  for (const size_t i : positions) {
    const int64_t sample = chosen.samples[i];
    const auto length = static_cast<size_t>(chosen.lengths[i]);
    const auto tokens = setup_->data.train->tokens(sample).first(length);
    const auto mask = setup_->data.train->mask(sample).first(length);
    batch.token_ids.insert(batch.token_ids.end(), tokens.begin(), tokens.end());
    batch.loss_mask.insert(batch.loss_mask.end(), mask.begin(), mask.end());
    batch.offsets.push_back(static_cast<int32_t>(batch.tokens()));
    batch.sample_ids.push_back(static_cast<uint64_t>(sample));
  }
  PERCHERON_ASSIGN_OR_RETURN(MadeFeatures made, maker.make(context, std::move(batch)));
  return made.computed_tokens > 0 ? std::move(made.features) : nullptr;
}

Status CaptureJob::written(const std::string& name, int64_t samples, int64_t tokens) {
  PERCHERON_ASSIGN_OR_RETURN(const uint64_t bytes,
                             files_.file_size(join_path(options_.directory, name)));
  const std::lock_guard lock(mutex_);
  summary_.captured += samples;
  summary_.bytes += bytes;
  tokens_done_ += tokens;
  news_ = true;
  changed_.notify_all();
  return ok_status();
}

Status CaptureJob::write_shard(Context& context, FeatureMaker& maker, size_t unit,
                               std::span<const size_t> positions) {
  const std::vector<int32_t>& lengths = setup_->data.selection.lengths;
  int64_t shard_tokens = 0;
  for (const size_t i : positions) shard_tokens += lengths[i];
  std::optional<Features> shard;
  for (size_t begin = 0; begin < positions.size();) {
    size_t end = begin;
    int64_t tokens = 0;
    while (end < positions.size() && (end == begin || tokens + lengths[positions[end]] <=
                                                          setup_->data.options.token_budget)) {
      tokens += lengths[positions[end++]];
    }
    PERCHERON_ASSIGN_OR_RETURN(const FeaturesPtr part,
                               capture(context, maker, positions.subspan(begin, end - begin)));
    begin = end;
    if (!part) continue;
    if (!shard) {
      shard = empty_like(*part);
      // At once: a vector that grows by steps takes three times as much.
      shard->hidden_states.reserve(plan_.shape.hidden_bytes(shard_tokens));
    }
    append_documents(*part, *shard);
  }
  if (!shard) return ok_status();
  const auto number = static_cast<int64_t>(unit);
  PERCHERON_RETURN_IF_ERROR(
      write_feature_shard(files_, options_.directory, number, *shard, plan_.origin));
  return written(shard_file_name(number), shard->batch.documents(), shard->batch.tokens());
}

Status CaptureJob::capture_unit(Context& context, FeatureMaker& maker, size_t unit) {
  std::vector<size_t> positions;
  for (size_t i = plan_.units[unit].begin; i < plan_.units[unit].end; ++i) {
    if (!done_[i]) positions.push_back(i);
  }
  if (positions.empty()) return ok_status();
  if (options_.layout == CaptureLayout::kShards) {
    return write_shard(context, maker, unit, positions);
  }
  PERCHERON_ASSIGN_OR_RETURN(const FeaturesPtr features, capture(context, maker, positions));
  if (!features) return ok_status();
  const MicroBatch& batch = features->batch;
  for (int32_t d = 0; d < static_cast<int32_t>(batch.documents()); ++d) {
    const auto at = static_cast<size_t>(d);
    PERCHERON_RETURN_IF_ERROR(
        write_sample_features(files_, options_.directory, *features, d, plan_.origin));
    PERCHERON_RETURN_IF_ERROR(written(sample_file_name(batch.sample_ids[at]), 1,
                                      batch.offsets[at + 1] - batch.offsets[at]));
  }
  return ok_status();
}

void CaptureJob::work(Context& context, FeatureMaker& maker) {
  while (const std::optional<size_t> unit = next_unit()) {
    const Status status = capture_unit(context, maker, *unit);
    const std::lock_guard lock(mutex_);
    if (!status.ok() && failed_.ok()) failed_ = status;
  }
  const std::lock_guard lock(mutex_);
  --working_;
  changed_.notify_all();
}

CaptureProgress CaptureJob::progress() const {
  CaptureProgress now;
  now.samples = summary_.found + summary_.captured;
  now.samples_total = plan_.samples;
  now.not_finite = not_finite();
  now.bytes = summary_.bytes;
  const double seconds = static_cast<double>(clock_.monotonic_ns() - begin_ns_) * 1e-9;
  if (seconds > 0) now.tokens_per_second = static_cast<double>(tokens_done_) / seconds;
  if (tokens_done_ > 0) {
    now.eta_seconds =
        static_cast<double>(tokens_to_do_ - tokens_done_) / std::max(now.tokens_per_second, 1e-9);
  }
  return now;
}

void CaptureJob::wait() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return news_ || working_ == 0; });
    const bool ended = working_ == 0;
    news_ = false;
    const CaptureProgress now = progress();
    lock.unlock();
    for (const std::string& line : quarantine_.take_news()) observer_.on_event(line);
    observer_.on_progress(now);
    if (ended) return;
    lock.lock();
  }
}

Result<CaptureSummary> CaptureJob::run() {
  PERCHERON_RETURN_IF_ERROR(load_targets());
  PERCHERON_RETURN_IF_ERROR(look_at_directory());
  begin_ns_ = clock_.monotonic_ns();
  working_ = static_cast<int64_t>(places_.size());
  for (Place& place : places_) {
    place.workers.front()->post([this, &place](Context& context) { work(context, *place.maker); });
  }
  wait();
  for (Place& place : places_) {
    for (const auto& worker : place.workers) worker->stop();
  }
  summary_.not_finite = not_finite();
  summary_.seconds = static_cast<double>(clock_.monotonic_ns() - begin_ns_) * 1e-9;
  if (!failed_.ok()) {
    return failed_.with_context(
        fmt::format("{} of {} samples are captured and stay, the same command goes on",
                    count(summary_.found + summary_.captured), count(plan_.samples)));
  }
  if (summary_.found + summary_.captured == 0) {
    return data_loss(
        fmt::format("none of {} samples has states that are finite", count(plan_.samples)));
  }
  PERCHERON_RETURN_IF_ERROR(
      directory_->finish(summary_.found + summary_.captured, plan_.left_out, summary_.not_finite));
  return summary_;
}

}  // namespace

Result<CaptureSummary> capture_to_files(std::shared_ptr<const RunSetup> setup,
                                        const CaptureOptions& options, CapturePlan plan,
                                        FileSystem& files, const Clock& clock,
                                        CaptureObserver& observer) {
  const bool made = !files.exists(options.directory);
  Result<CaptureSummary> summary =
      CaptureJob(std::move(setup), options, std::move(plan), files, clock, observer).run();
  if (!summary.ok() && made) remove_unused_capture(files, options.directory);
  return summary;
}

}  // namespace percheron

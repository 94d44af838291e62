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
#include "actors/capture_lane.h"
#include "actors/device_worker.h"
#include "actors/feature_maker.h"
#include "actors/policy/quarantine.h"
#include "actors/run_fingerprint.h"
#include "actors/scratch_reservation.h"
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
  // Samples that are written together.
  struct Unit {
    size_t number = 0;
    std::vector<std::vector<size_t>> packs;  // micro-batches, as positions in the selection
    size_t begun = 0;                        // of the packs; the device's worker's
    // The lane's thread's: what is made of the packs, behind those that the shard has.
    std::vector<std::optional<FeaturesPtr>> parts;
    size_t appended = 0;
    std::optional<Features> shard;
    int64_t tokens = 0;
  };
  struct Place {
    std::vector<std::unique_ptr<DeviceWorker>> workers;  // of a target's ranks; rank 0's makes
    std::unique_ptr<Target> target;                      // after the workers: goes first
    std::unique_ptr<FeatureMaker> maker;
    std::unique_ptr<CaptureLane> lane;
    std::shared_ptr<Unit> unit;  // of which the lane takes the micro-batches; its worker's
  };

  Status load_targets();
  Status start_workers();
  Status reserve_memory(const std::shared_ptr<const TargetFiles>& files);
  Status load_target(Place& place, const std::shared_ptr<const TargetFiles>& files,
                     const TargetOptions& options);
  Status look_at_directory();
  /// Of a micro-batch to come.
  int64_t most_tokens() const;
  std::optional<size_t> next_unit();
  std::shared_ptr<Unit> make_unit(size_t number) const;
  /// The next micro-batch of a place; none when no unit is left or one has failed anywhere.
  std::optional<CaptureLane::Piece> next_piece(Place& place);
  MicroBatch make_batch(std::span<const size_t> positions) const;
  Status take(Unit& unit, size_t pack, MadeFeatures made);
  Status write_samples(const Features& features);
  /// Appends the parts that are next in order; writes the shard when it has them all.
  Status fill_shard(Unit& unit);
  void lane_ended(const Status& status);
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
  PERCHERON_RETURN_IF_ERROR(start_workers());
  PERCHERON_RETURN_IF_ERROR(reserve_memory(files));
  for (Place& place : places_) PERCHERON_RETURN_IF_ERROR(load_target(place, files, options));
  const Place& first = places_.front();
  PERCHERON_ASSIGN_OR_RETURN(
      const std::optional<WeightsReport> report,
      compare_target_weights(*setup_, *first.workers.front(), *first.target, clock_));
  if (report) observer_.on_event(report->text);
  return ok_status();
}

Status CaptureJob::start_workers() {
  // A device that is named twice still takes its turns alone.
  const std::vector<std::vector<DeviceId>> named = setup_->placement.target_groups();
  for (const auto& group : std::set<std::vector<DeviceId>>(named.begin(), named.end())) {
    Place& place = places_.emplace_back();
    for (const DeviceId id : group) {
      Result<std::unique_ptr<DeviceWorker>> worker =
          DeviceWorker::start(id, setup_->placement.device_options(), clock_);
      if (!worker.ok()) return worker.status().with_context("placement.targets");
      place.workers.push_back(std::move(worker).value());
    }
  }
  return ok_status();
}

// What a run of these features would take that trains nothing and has none of them yet.
Status CaptureJob::reserve_memory(const std::shared_ptr<const TargetFiles>& files) {
  auto setup = std::make_shared<RunSetup>(*setup_);
  setup->features = plan_.shape;
  setup->tokens_max = most_tokens();
  setup->placement.trainers.clear();
  setup->config.mutable_features()->clear_from();
  std::vector<DeviceWorker*> workers;
  for (const Place& place : places_) {
    for (const auto& worker : place.workers) workers.push_back(worker.get());
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                             reserve_scratch(setup, files_, files, workers));
  for (const std::string& line : lines) observer_.on_event(line);
  return ok_status();
}

Status CaptureJob::load_target(Place& place, const std::shared_ptr<const TargetFiles>& files,
                               const TargetOptions& options) {
  std::vector<DeviceWorker*> workers;
  for (const auto& worker : place.workers) workers.push_back(worker.get());
  if (workers.size() > 1) {
    PERCHERON_ASSIGN_OR_RETURN(place.target,
                               TensorParallelTarget::load(files, workers, options, {}));
  } else {
    PERCHERON_RETURN_IF_ERROR(workers.front()->run([&](Context& context) -> Status {
      PERCHERON_ASSIGN_OR_RETURN(place.target, Target::load(files, context, options));
      return ok_status();
    }));
  }
  place.maker = std::make_unique<TargetFeatureMaker>(*place.target, nullptr, quarantine_,
                                                     plan_.shape, "", most_tokens());
  return ok_status();
}

int64_t CaptureJob::most_tokens() const {
  const std::vector<int32_t>& lengths = setup_->data.selection.lengths;
  int64_t tokens = 0;
  for (const CaptureUnit& unit : plan_.units) {
    int64_t pack = 0;
    for (size_t i = unit.begin; i < unit.end; ++i) {
      const bool fits = options_.layout == CaptureLayout::kSamples ||
                        pack + lengths[i] <= setup_->data.options.token_budget;
      pack = fits ? pack + lengths[i] : lengths[i];
      tokens = std::max(tokens, pack);
    }
  }
  return tokens;
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

std::shared_ptr<CaptureJob::Unit> CaptureJob::make_unit(size_t number) const {
  const std::vector<int32_t>& lengths = setup_->data.selection.lengths;
  const auto unit = std::make_shared<Unit>();
  unit->number = number;
  int64_t pack_tokens = 0;
  const CaptureUnit& planned = plan_.units[number];
  for (size_t i = planned.begin; i < planned.end; ++i) {
    if (done_[i]) continue;
    const bool fits = options_.layout == CaptureLayout::kSamples ||
                      pack_tokens + lengths[i] <= setup_->data.options.token_budget;
    if (unit->packs.empty() || !fits) {
      unit->packs.emplace_back();
      pack_tokens = 0;
    }
    unit->packs.back().push_back(i);
    pack_tokens += lengths[i];
    unit->tokens += lengths[i];
  }
  unit->parts.resize(unit->packs.size());
  return unit;
}

std::optional<CaptureLane::Piece> CaptureJob::next_piece(Place& place) {
  while (!place.unit || place.unit->begun == place.unit->packs.size()) {
    const std::optional<size_t> number = next_unit();
    if (!number) return std::nullopt;
    place.unit = make_unit(*number);
  }
  const size_t pack = place.unit->begun++;
  return CaptureLane::Piece{make_batch(place.unit->packs[pack]),
                            [this, unit = place.unit, pack](MadeFeatures made) {
                              return take(*unit, pack, std::move(made));
                            }};
}

MicroBatch CaptureJob::make_batch(std::span<const size_t> positions) const {
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
  return batch;
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

Status CaptureJob::take(Unit& unit, size_t pack, MadeFeatures made) {
  // None for a pack in which nothing can be captured.
  FeaturesPtr features = made.computed_tokens > 0 ? std::move(made.features) : nullptr;
  if (options_.layout == CaptureLayout::kSamples) {
    return features ? write_samples(*features) : ok_status();
  }
  unit.parts[pack] = std::move(features);
  return fill_shard(unit);
}

Status CaptureJob::write_samples(const Features& features) {
  const MicroBatch& batch = features.batch;
  for (int32_t d = 0; d < static_cast<int32_t>(batch.documents()); ++d) {
    const auto at = static_cast<size_t>(d);
    PERCHERON_RETURN_IF_ERROR(
        write_sample_features(files_, options_.directory, features, d, plan_.origin));
    PERCHERON_RETURN_IF_ERROR(written(sample_file_name(batch.sample_ids[at]), 1,
                                      batch.offsets[at + 1] - batch.offsets[at]));
  }
  return ok_status();
}

Status CaptureJob::fill_shard(Unit& unit) {
  for (; unit.appended < unit.parts.size() && unit.parts[unit.appended]; ++unit.appended) {
    const FeaturesPtr part = *std::exchange(unit.parts[unit.appended], FeaturesPtr());
    if (!part) continue;
    if (!unit.shard) {
      unit.shard = empty_like(*part);
      // At once: a vector that grows by steps takes three times as much.
      unit.shard->hidden_states.reserve(plan_.shape.hidden_bytes(unit.tokens));
    }
    append_documents(*part, *unit.shard);
  }
  if (unit.appended < unit.parts.size() || !unit.shard) return ok_status();
  const Features shard = *std::exchange(unit.shard, std::nullopt);
  const auto number = static_cast<int64_t>(unit.number);
  PERCHERON_RETURN_IF_ERROR(
      write_feature_shard(files_, options_.directory, number, shard, plan_.origin));
  return written(shard_file_name(number), shard.batch.documents(), shard.batch.tokens());
}

void CaptureJob::lane_ended(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (!status.ok() && failed_.ok()) failed_ = status;
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
    place.lane = std::make_unique<CaptureLane>(
        *place.workers.front(), *place.maker, clock_, [this, &place] { return next_piece(place); },
        [this](const Status& status) { lane_ended(status); });
    place.lane->start();
  }
  wait();
  for (Place& place : places_) {
    place.lane->stop();
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

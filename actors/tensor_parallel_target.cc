#include "actors/tensor_parallel_target.h"

#include <fmt/format.h>

#include <utility>

#include "actors/rank_pass.h"

namespace percheron {
namespace {

std::string rank_name(const std::vector<TensorParallelTarget::Rank>& ranks, int rank) {
  return fmt::format("rank {} of {} ({})", rank, ranks.size(),
                     ranks[static_cast<size_t>(rank)].worker->name());
}

// Ends the other ranks' waits for the one that failed.
std::shared_ptr<RankPass> make_pass(const std::vector<TensorParallelTarget::Rank>& ranks) {
  return std::make_shared<RankPass>(
      static_cast<int>(ranks.size()), [&ranks](const RankPass::Failure& failure) {
        const std::string why =
            rank_name(ranks, failure.rank) + " failed: " + failure.status.message();
        for (const TensorParallelTarget::Rank& rank : ranks) rank.collective->abort(why);
      });
}

// Posts `work` to the workers of the ranks from `first` on.
void post(const std::vector<TensorParallelTarget::Rank>& ranks, size_t first,
          const std::shared_ptr<RankPass>& pass,
          const std::function<Status(size_t, Context&)>& work) {
  for (size_t rank = first; rank < ranks.size(); ++rank) {
    const auto part = std::make_shared<RankPart>(pass, static_cast<int>(rank));
    ranks[rank].worker->post(
        [part, rank, &work](Context& context) { part->run([&] { return work(rank, context); }); });
  }
}

Status outcome(const std::vector<TensorParallelTarget::Rank>& ranks, RankPass& pass) {
  const std::optional<RankPass::Failure> failure = pass.wait();
  return failure ? failure->status.with_context(rank_name(ranks, failure->rank)) : ok_status();
}

}  // namespace

Result<std::unique_ptr<TensorParallelTarget>> TensorParallelTarget::load(
    std::shared_ptr<const TargetFiles> files, std::span<DeviceWorker* const> workers,
    const TargetOptions& options, const std::set<DeviceId>& head_devices) {
  PERCHERON_RETURN_IF_ERROR(
      check_tensor_parallel(files->config, static_cast<int64_t>(workers.size())));
  std::vector<DeviceId> devices;
  for (const DeviceWorker* worker : workers) devices.push_back(worker->info().id);
  Result<DeviceCollectives> collectives = make_device_collectives(devices, {});
  if (!collectives.ok()) return collectives.status().with_context("placement.tensor_parallel");
  std::vector<Rank> ranks(workers.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].worker = workers[rank];
    ranks[rank].collective = std::move((*collectives)[rank]);
  }
  const Work load_rank = [&](size_t rank, Context& context) -> Status {
    TargetOptions own = options;
    own.shard = {static_cast<int>(rank), static_cast<int>(ranks.size()),
                 ranks[rank].collective.get()};
    own.head = options.head && (rank == 0 || head_devices.count(devices[rank]) != 0);
    PERCHERON_ASSIGN_OR_RETURN(ranks[rank].target, Target::load(files, context, own));
    return ok_status();
  };
  const std::shared_ptr<RankPass> pass = make_pass(ranks);
  post(ranks, 0, pass, load_rank);
  PERCHERON_RETURN_IF_ERROR(outcome(ranks, *pass));
  return std::make_unique<TensorParallelTarget>(std::move(ranks));
}

Status TensorParallelTarget::on_all(Context& own, const Work& work) {
  const std::shared_ptr<RankPass> pass = make_pass(ranks_);
  post(ranks_, 1, pass, work);
  pass->run(0, [&] { return work(0, own); });
  return outcome(ranks_, *pass);
}

Status TensorParallelTarget::load_layers(Context& context) {
  return on_all(
      context, [this](size_t rank, Context& own) { return ranks_[rank].target->load_layers(own); });
}

Status TensorParallelTarget::forward(Context& context, const PackedSequences& rows, KvCache* cache,
                                     TensorView captured, TensorView last) {
  if (cache != nullptr) {
    return invalid_argument(fmt::format(
        "a target on {} devices keeps no keys and values: generate with a target on one device",
        ranks_.size()));
  }
  return run_pass(context, rows, last.present(), [&](Target& target, Context& own) {
    return target.forward(own, rows, nullptr, captured, last);
  });
}

Result<std::shared_ptr<const void>> TensorParallelTarget::begin_forward(
    Context& context, const PackedSequences& rows, TensorView captured, TensorView last,
    const SlotWritten& written) {
  std::shared_ptr<const void> held;
  const auto first = [&](Target& target, Context& own) -> Status {
    PERCHERON_ASSIGN_OR_RETURN(held, target.begin_forward(own, rows, captured, last, written));
    return ranks_.front().collective->wait_idle(own.stream);
  };
  PERCHERON_RETURN_IF_ERROR(run_pass(context, rows, last.present(), first));
  return held;
}

Status TensorParallelTarget::run_pass(
    Context& context, const PackedSequences& rows, bool with_last,
    const std::function<Status(Target& target, Context& context)>& first) {
  const int64_t count = static_cast<int64_t>(rows.token_ids.size());
  return on_all(context, [&](size_t rank, Context& own) {
    Target& target = *ranks_[rank].target;
    if (rank == 0) return first(target, own);
    const Arena::Scope scope(own.arena);
    // As wanted by rank 0, so that all ranks run the same layers.
    const TensorView own_last =
        with_last ? own.arena.take(DType::kF32, {count, config().hidden_size}) : TensorView();
    return target.forward(own, rows, nullptr, {}, own_last);
  });
}

Result<std::vector<float>> TensorParallelTarget::all_states(Context& context,
                                                            const PackedSequences& rows,
                                                            std::span<const int32_t> wanted) {
  std::vector<float> states;
  PERCHERON_RETURN_IF_ERROR(on_all(context, [&](size_t rank, Context& own) -> Status {
    PERCHERON_ASSIGN_OR_RETURN(std::vector<float> of_rank,
                               ranks_[rank].target->all_states(
                                   own, rows, rank == 0 ? wanted : std::span<const int32_t>()));
    if (rank == 0) states = std::move(of_rank);
    return ok_status();
  }));
  return states;
}

Result<WeightsComparison> TensorParallelTarget::compare_weights(Context& context,
                                                                const PackedSequences& rows) {
  WeightsComparison comparison;
  PERCHERON_RETURN_IF_ERROR(on_all(context, [&](size_t rank, Context& own) -> Status {
    PERCHERON_ASSIGN_OR_RETURN(const WeightsComparison of_rank,
                               ranks_[rank].target->compare_weights(own, rows));
    if (rank == 0) comparison = of_rank;
    return ok_status();
  }));
  return comparison;
}

void TensorParallelTarget::logits(Context& context, ConstTensorView last, TensorView logits) {
  ranks_.front().target->logits(context, last, logits);
}

void TensorParallelTarget::top1(Context& context, ConstTensorView last, TensorView out) {
  ranks_.front().target->top1(context, last, out);
}

}  // namespace percheron

#include "actors/actor_system.h"

namespace percheron {
namespace {

// Runs on the device's worker.
Status produce(Context& context, RunParts& parts, FeatureMaker& maker, MicroBatchId id,
               int64_t* tokens) {
  PERCHERON_ASSIGN_OR_RETURN(MadeFeatures made, maker.make(context, parts.batches->make(id)));
  *tokens = made.computed_tokens;
  if (id.epoch == kHeldOutEpoch) {
    return parts.held_out.add(std::move(made.features));
  }
  const Status published = parts.store->publish(std::move(made.features));
  // A target whose lease was taken away may have been first: the same features, from the same rows.
  if (published.code() == StatusCode::kFailedPrecondition && parts.store->get(id)) {
    return ok_status();
  }
  return published;
}

}  // namespace

caf::actor start_target(caf::actor_system& system, RunParts& parts, PeersPtr peers, int number) {
  return system.spawn([&parts, peers, number](caf::event_based_actor* self) -> caf::behavior {
    log_unexpected_messages(self, "a target");
    return {
        [=](const Begin&) { self->send(peers->sampler, TargetIdle{number}); },
        [=, &parts](const Produce& work) {
          TargetPlace& place = parts.targets[static_cast<size_t>(number)];
          place.worker->post(
              [&parts, &place, number, work, sampler = peers->sampler](Context& context) {
                const int64_t begin = parts.clock->monotonic_ns();
                Produced done{number, work, 0, 0, {}};
                done.outcome =
                    Outcome::of(produce(context, parts, *place.maker, work.id, &done.tokens));
                done.seconds = static_cast<double>(parts.clock->monotonic_ns() - begin) * 1e-9;
                caf::anon_send(sampler, std::move(done));
              });
        },
    };
  });
}

}  // namespace percheron

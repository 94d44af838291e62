#include "actors/actor_system.h"

namespace percheron {
namespace {

// Runs on the device's worker.
Status produce(Context& context, RunParts& parts, FeatureMaker& maker, Produced& done) {
  PERCHERON_ASSIGN_OR_RETURN(MadeFeatures made,
                             maker.make(context, parts.batches->make(done.work.id)));
  done.tokens = made.computed_tokens;
  done.samples = made.features->batch.documents();
  return parts.exchange->publish(std::move(made.features), done);
}

// A supervisor in this process looks at the quarantine itself.
void tell_set_aside(RunParts& parts, const caf::actor& supervisor) {
  if (!parts.exchange->held_out_is_elsewhere()) return;
  for (Quarantine::Sample& sample : parts.quarantine->take_new_samples()) {
    caf::anon_send(supervisor,
                   SetAside{sample.set == SampleSet::kHeldOut, static_cast<int64_t>(sample.sample),
                            std::move(sample.reason)});
  }
}

}  // namespace

caf::actor start_target(caf::actor_system& system, RunParts& parts, PeersPtr peers, int number) {
  return system.spawn([&parts, peers, number](caf::event_based_actor* self) -> caf::behavior {
    log_unexpected_messages(self, "a target");
    return {
        [=](const Begin&) { self->send(peers->sampler, TargetIdle{number}); },
        [=, &parts](const Produce& work) {
          TargetPlace& place = parts.targets[static_cast<size_t>(number)];
          place.worker->post([&parts, &place, number, work, sampler = peers->sampler,
                              supervisor = peers->supervisor](Context& context) {
            const int64_t begin = parts.clock->monotonic_ns();
            Produced done;
            done.target = number;
            done.work = work;
            done.outcome = Outcome::of(produce(context, parts, *place.maker, done));
            tell_set_aside(parts, supervisor);
            done.seconds = static_cast<double>(parts.clock->monotonic_ns() - begin) * 1e-9;
            caf::anon_send(sampler, std::move(done));
          });
        },
    };
  });
}

}  // namespace percheron

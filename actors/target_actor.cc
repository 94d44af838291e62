#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "actors/actor_system.h"
#include "actors/policy/target_flow.h"

namespace percheron {
namespace {

/// A micro-batch whose pass has begun.
struct Flight {
  Produced done;
  int64_t begin_ns = 0, passed_ns = 0;
  std::unique_ptr<FeaturesUnderWay> features;
};
using FlightPtr = std::shared_ptr<Flight>;

// A supervisor in this process looks at the quarantine itself.
void tell_set_aside(RunParts& parts, const caf::actor& supervisor) {
  if (!parts.exchange->held_out_is_elsewhere()) return;
  for (Quarantine::Sample& sample : parts.quarantine->take_new_samples()) {
    caf::anon_send(supervisor,
                   SetAside{sample.set == SampleSet::kHeldOut, static_cast<int64_t>(sample.sample),
                            std::move(sample.reason)});
  }
}

/// Takes micro-batches from the sampler. Passes are put into the device's stream by its worker; the
/// place's own thread waits for what comes of them, looks at it and leaves it in the store.
class TargetShell {
 public:
  TargetShell(caf::event_based_actor* self, RunParts& parts, PeersPtr peers, int number)
      : self_(self),
        parts_(parts),
        peers_(std::move(peers)),
        number_(number),
        place_(parts.targets[static_cast<size_t>(number)]),
        alone_(users_of(place_.worker) == 1) {}

  void ask() {
    if (flow_.ask()) self_->send(peers_->sampler, TargetIdle{number_});
  }

  void take(const Produce& work) {
    waiting_.push_back(work);
    flow_.given();
    begin();
  }

  // From the device's worker.
  void begun() {
    flow_.begun();
    begin();
    ask();
  }

  // From whoever ended it. The sampler hears of it before it is asked for more.
  void ended(Produced done) {
    flow_.ended();
    self_->send(peers_->sampler, std::move(done));
    begin();
    ask();
  }

 private:
  // Targets and trainers that have this worker. They take turns: a pass that is left in the stream
  // would be counted as the time of whoever comes next.
  int users_of(const DeviceWorker* worker) const {
    int users = 0;
    for (const TargetPlace& place : parts_.targets) users += place.worker == worker ? 1 : 0;
    for (const TrainerPlace& place : parts_.trainers) users += place.worker == worker ? 1 : 0;
    return users;
  }

  void begin() {
    if (!flow_.begin()) return;
    const auto flight = std::make_shared<Flight>();
    flight->done.target = number_;
    flight->done.work = waiting_.front();
    waiting_.pop_front();
    place_.worker->post([this, flight](Context& context) { begin(context, flight); });
  }

  // On the device's worker, as is again().
  void begin(Context& context, const FlightPtr& flight) {
    flight->begin_ns = now();
    Result<std::unique_ptr<FeaturesUnderWay>> features =
        place_.maker->begin(context, parts_.batches->make(flight->done.work.id));
    if (!features.ok()) {
      flight->passed_ns = now();
      end(flight, features.status());
    } else {
      flight->features = std::move(features).value();
      if (!alone_) flight->features->wait_pass();
      place_.finisher->post([this, flight, device = &context.device] {
        // On a processor it issues nothing, and gets no team.
        if (!bound_ && !device->info().immediate) device->bind_thread();
        bound_ = true;
        finish(flight);
      });
    }
    caf::anon_send(me(), TargetIdle{number_});  // The device may have the next.
  }

  // On the place's thread.
  void finish(const FlightPtr& flight) {
    flight->features->wait_pass();
    flight->passed_ns = now();
    Result<std::optional<MadeFeatures>> made = flight->features->finish();
    if (!made.ok()) return end(flight, made.status());
    if (*made) return end(flight, publish(flight->done, std::move(**made)));
    place_.worker->post([this, flight](Context& context) { again(context, flight); });
  }

  void again(Context& context, const FlightPtr& flight) {
    Result<MadeFeatures> made = flight->features->again(context);
    flight->passed_ns = now();
    end(flight, made.ok() ? publish(flight->done, std::move(made).value()) : made.status());
  }

  Status publish(Produced& done, MadeFeatures made) {
    done.tokens = made.computed_tokens;
    done.samples = made.features->batch.documents();
    return parts_.exchange->publish(std::move(made.features), done);
  }

  void end(const FlightPtr& flight, const Status& status) {
    flight->features.reset();  // Its buffers are the next one's before that is asked for.
    Produced& done = flight->done;
    done.outcome = Outcome::of(status);
    {
      const std::lock_guard lock(timer_mutex_);
      done.seconds =
          static_cast<double>(timer_.add(flight->begin_ns, flight->passed_ns, now())) * 1e-9;
    }
    tell_set_aside(parts_, peers_->supervisor);
    caf::anon_send(me(), std::move(done));
  }

  caf::actor me() const { return caf::actor_cast<caf::actor>(self_); }
  int64_t now() const { return parts_.clock->monotonic_ns(); }

  caf::event_based_actor* const self_;
  RunParts& parts_;
  const PeersPtr peers_;
  const int number_;
  TargetPlace& place_;
  const bool alone_;
  TargetFlow flow_;
  std::deque<Produce> waiting_;
  std::mutex timer_mutex_;
  PassTimer timer_;     // guarded by timer_mutex_
  bool bound_ = false;  // the place's thread to the device; its own
};

}  // namespace

caf::actor start_target(caf::actor_system& system, RunParts& parts, PeersPtr peers, int number) {
  return system.spawn([&parts, peers, number](caf::event_based_actor* self) -> caf::behavior {
    log_unexpected_messages(self, "a target");
    const auto shell = std::make_shared<TargetShell>(self, parts, peers, number);
    return {
        [shell](const Begin&) { shell->ask(); },
        [shell](const Produce& work) { shell->take(work); },
        [shell](const TargetIdle&) { shell->begun(); },
        [shell](const Produced& done) { shell->ended(done); },
    };
  });
}

}  // namespace percheron

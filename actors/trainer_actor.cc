#include <fmt/format.h>

#include <deque>
#include <functional>
#include <mutex>

#include "actors/actor_system.h"

namespace percheron {
namespace {

// A trainer actor's hands: each function posts a job that ends by telling an actor.
class Trainer {
 public:
  Trainer(RunParts& parts, PeersPtr peers, int number)
      : parts_(parts),
        place_(parts.trainers[static_cast<size_t>(number)]),
        peers_(std::move(peers)),
        number_(number) {}

  void idle() { caf::anon_send(peers_->mailbox, Take{number_}); }

  void train(const Ticket& ticket, int64_t lease) {
    place_.worker->post([this, ticket, lease](Context& context) {
      const double begin = now();
      Computed done{number_, ticket.id, lease, 0, 0, 0};
      const Status status = add(context, ticket.id, done);
      done.seconds = now() - begin;
      if (!status.ok()) return fail(status);
      caf::anon_send(peers_->mailbox, std::move(done));
      idle();
    });
  }

  void reduce(int64_t step, int64_t membership) {
    if (!place_.collective) {
      place_.total = place_.trainer->sums();
      caf::anon_send(peers_->supervisor, Reduced{number_, step, membership, 0});
      return;
    }
    place_.worker->post([this, step, membership](Context& context) {
      const double begin = now();
      Result<StepSums> own = place_.trainer->collect(context, place_.gradients);
      if (!own.ok()) return fail(own.status());
      const double seconds = now() - begin;
      // Others may come late: the wait is the reducer's, so that the device goes on meanwhile.
      place_.reducer->post([this, step, membership, seconds, own = std::move(own).value()] {
        std::vector<double> sums = encode_sums(own, sum_positions(*parts_.setup));
        Status status = place_.collective->all_reduce_sum(std::span<float>(place_.gradients));
        if (status.ok()) status = place_.collective->all_reduce_sum(std::span<double>(sums));
        if (!status.ok()) return fail(status);
        place_.total = decode_sums(sums);
        caf::anon_send(peers_->supervisor, Reduced{number_, step, membership, seconds});
      });
    });
  }

  void apply(int64_t step, bool checksum) {
    // An evaluation measures the parameters of one step.
    after_evaluation([this, step, checksum] { post_apply(step, checksum); });
  }

  void post_apply(int64_t step, bool checksum) {
    place_.worker->post([this, step, checksum](Context& context) {
      const double begin = now();
      Applied done;
      done.trainer = number_;
      done.step = step;
      Result<AppliedStep> applied = place_.trainer->apply(
          context, place_.collective ? &place_.gradients : nullptr, place_.total, step);
      if (!applied.ok()) return fail(applied.status());
      done.sums = encode_sums(place_.total, sum_positions(*parts_.setup));
      done.gradient_norm = applied->gradient_norm;
      done.rate_factor = applied->rate_factor;
      done.skipped = applied->skipped;
      if (checksum) {
        Result<uint32_t> value = place_.trainer->checksum(context);
        if (!value.ok()) return fail(value.status());
        done.has_checksum = true;
        done.checksum = *value;
      }
      done.seconds = now() - begin;
      caf::anon_send(peers_->supervisor, std::move(done));
    });
  }

  void evaluate(int64_t step) {
    const auto share = std::make_shared<Share>();
    const std::vector<FeaturesPtr> all = parts_.held_out.all();
    for (size_t i = static_cast<size_t>(number_); i < all.size(); i += parts_.trainers.size()) {
      share->left.push_back(all[i]);
    }
    {
      const std::lock_guard lock(mutex_);
      evaluating_ = true;
    }
    evaluate_next(step, share);
  }

  void snapshot(int64_t step) {
    place_.worker->post([this, step](Context& context) {
      const double begin = now();
      Result<TrainerSnapshot> snapshot = place_.trainer->snapshot(context, step);
      if (!snapshot.ok()) return fail(snapshot.status().with_context("checkpoint"));
      {
        const std::lock_guard lock(parts_.snapshot_mutex);
        parts_.snapshot = std::make_unique<TrainerSnapshot>(std::move(snapshot).value());
      }
      caf::anon_send(peers_->supervisor, SnapshotTaken{step, now() - begin});
    });
  }

 private:
  // A trainer's part of an evaluation.
  struct Share {
    std::deque<FeaturesPtr> left;
    WalkCounts counts;
    double seconds = 0;
  };

  void after_evaluation(std::function<void()> call) {
    {
      const std::lock_guard lock(mutex_);
      if (evaluating_) {
        deferred_ = std::move(call);
        return;
      }
    }
    call();
  }

  void end_evaluation() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex_);
      evaluating_ = false;
      call.swap(deferred_);
    }
    if (call) call();
  }

  // One micro-batch a job, each posted by the one before: others on the device get their turn, and
  // the queue stays short whatever is held out.
  void evaluate_next(int64_t step, const std::shared_ptr<Share>& share) {
    place_.worker->post([this, step, share](Context& context) {
      if (share->left.empty()) {
        caf::anon_send(peers_->supervisor, Evaluated{number_, step, share->counts.rounds,
                                                     share->counts.tokens, share->seconds});
        return end_evaluation();
      }
      const double begin = now();
      Result<WalkCounts> counts = place_.trainer->evaluate(context, *share->left.front());
      if (!counts.ok()) return fail(counts.status().with_context("evaluation"));
      share->counts.add(*counts);
      share->left.pop_front();
      share->seconds += now() - begin;
      evaluate_next(step, share);
    });
  }

  double now() const { return static_cast<double>(parts_.clock->monotonic_ns()) * 1e-9; }

  Status add(Context& context, MicroBatchId id, Computed& done) {
    const FeaturesPtr features = parts_.store->get(id);
    if (!features) {
      return internal_error(fmt::format("the features of micro-batch ({}, {}) are not in the store",
                                        id.epoch, id.index));
    }
    if (features->fingerprint != parts_.fingerprint) {  // invariant 7
      return failed_precondition(
          fmt::format("micro-batch ({}, {}) has features of run {}, this run is {}", id.epoch,
                      id.index, features->fingerprint, parts_.fingerprint));
    }
    done.tokens = features->batch.tokens();
    done.samples = features->batch.documents();
    return place_.trainer->add(context, *features).status();
  }

  void fail(const Status& status) {
    caf::anon_send(peers_->supervisor,
                   Failed{fmt::format("trainer {} on {}", number_, place_.worker->name()),
                          Outcome::of(status)});
  }

  RunParts& parts_;
  TrainerPlace& place_;
  PeersPtr peers_;
  int32_t number_;
  std::mutex mutex_;
  bool evaluating_ = false;
  std::function<void()> deferred_;  // an update that waits for the evaluation
};

}  // namespace

caf::actor start_trainer(caf::actor_system& system, RunParts& parts, PeersPtr peers, int number) {
  return system.spawn([&parts, peers, number](caf::event_based_actor* self) -> caf::behavior {
    log_unexpected_messages(self, "a trainer");
    const auto trainer = std::make_shared<Trainer>(parts, peers, number);
    return {
        [trainer](const Begin&) { trainer->idle(); },
        [trainer](const TakeTicket& message) { trainer->train(message.ticket, message.lease); },
        [trainer](const Reduce& message) { trainer->reduce(message.step, message.membership); },
        [trainer](const Apply& message) { trainer->apply(message.step, message.checksum); },
        [trainer](const Evaluate& message) { trainer->evaluate(message.step); },
        [trainer](const TakeSnapshot& message) { trainer->snapshot(message.step); },
    };
  });
}

}  // namespace percheron

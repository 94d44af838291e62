#include <fmt/format.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>

#include "actors/actor_system.h"
#include "actors/trainer_feed.h"

namespace percheron {
namespace {

// A trainer actor's hands: each function posts a job that ends by telling an actor.
class Trainer {
 public:
  Trainer(RunParts& parts, PeersPtr peers, int number)
      : parts_(parts),
        place_(parts.trainers[static_cast<size_t>(number)]),
        peers_(std::move(peers)),
        number_(number),
        feed_(*parts.exchange, *parts.clock, place_.sums.get(), hooks()) {}

  void begin() { caf::anon_send(peers_->mailbox, Take{number_}); }

  void train(const TakeTicket& message) {
    begin_anew(message.membership);
    feed_.take(message);
  }

  void keep_held_out(const Ticket& ticket) {
    {
      const std::lock_guard lock(held_out_mutex_);
      ++held_out_fetches_;
    }
    parts_.exchange->fetch(ticket, [this](Result<FeaturesPtr> features) {
      const Status status =
          features.ok() ? parts_.held_out.add(*std::move(features)) : features.status();
      std::optional<Evaluate> waiting;
      {
        const std::lock_guard lock(held_out_mutex_);
        if (--held_out_fetches_ == 0) waiting.swap(waiting_evaluation_);
      }
      if (!status.ok()) return fail(status.with_context("held-out features"));
      if (waiting) begin_evaluation(*waiting);
    });
  }

  // From here on `members` reduce together. The wait for them is the reducer's.
  void regroup(int64_t membership, const std::vector<int>& members) {
    begin_anew(membership);
    alone_ = members.size() == 1;
    members_ = members;
    const std::optional<LastHandedOut> early = std::exchange(early_, std::nullopt);
    if (place_.group) place_.group->leave_for(membership);
    if (alone_) {
      caf::anon_send(peers_->supervisor, Regrouped{number_, membership});
      return;
    }
    PERCHERON_CHECK(place_.group, "a trainer that has company has a group");
    place_.reducer->post([this, membership, members] {
      const Status status = place_.group->join(membership, members);
      if (!status.ok()) return reduce_failed(-1, membership, status);
      caf::anon_send(peers_->supervisor, Regrouped{number_, membership});
    });
    grouped_ = membership;
    if (early) last_handed_out(*early);
  }

  // The sums between devices begin while the last micro-batches compute.
  void last_handed_out(const LastHandedOut& last) {
    if (!place_.sums || last.membership < membership_) return;
    if (last.membership > grouped_) {  // All join the group in host memory first.
      early_ = last;
      return;
    }
    if (alone_) return;
    const std::optional<int64_t> attempt = place_.sums->begin(last.step, last.group);
    if (!attempt) return;
    place_.reducer->post([this, attempt = *attempt, members = members_] {
      place_.sums->put_in(*place_.trainer, attempt, members);
    });
  }

  void reduce(int64_t step, int64_t membership) {
    if (membership != membership_) return;
    summed_ = alone_ ? Summed::kNowhere : place_.sums ? Summed::kOnDevices : Summed::kOnHost;
    if (alone_) {
      place_.total = place_.trainer->sums();
      caf::anon_send(peers_->supervisor, Reduced{number_, step, membership, 0});
      return;
    }
    if (place_.sums) return reduce_between_devices(step, membership);
    place_.worker->post([this, step, membership](Context& context) {
      const double begin = now();
      Result<StepSums> own = collect(context);
      if (!own.ok()) return fail(own.status());
      const double seconds = now() - begin;
      // Others may come late: the wait is the reducer's, so that the device goes on meanwhile.
      place_.reducer->post([this, step, membership, seconds, own = std::move(own).value()] {
        const std::lock_guard lock(gradients_mutex_);
        std::vector<double> sums = encode_sums(own, sum_positions(*parts_.setup));
        const Status status = place_.group->all_reduce_sum(membership, place_.gradients, sums);
        if (!status.ok()) return reduce_failed(step, membership, status);
        place_.total = decode_sums(sums);
        caf::anon_send(peers_->supervisor, Reduced{number_, step, membership, seconds});
      });
    });
  }

  void apply(const Apply& order) {
    const Summed summed = summed_;
    place_.worker->post([this, order, summed](Context& context) {
      const double begin = now();
      Applied done;
      done.trainer = number_;
      done.step = order.step;
      done.round = order.round;
      Result<AppliedStep> applied =
          summed == Summed::kOnDevices
              ? place_.trainer->apply_reduced(context, place_.total, order.step)
              : place_.trainer->apply(context,
                                      summed == Summed::kOnHost ? &place_.gradients : nullptr,
                                      place_.total, order.step);
      if (!applied.ok()) return fail(applied.status());
      done.sums = encode_sums(place_.total, sum_positions(*parts_.setup));
      done.gradient_norm = applied->gradient_norm;
      done.rate_factor = applied->rate_factor;
      done.skipped = applied->skipped;
      if (order.checksum) {
        Result<uint32_t> value = place_.trainer->checksum(context);
        if (!value.ok()) return fail(value.status());
        done.has_checksum = true;
        done.checksum = *value;
      }
      done.seconds = now() - begin;
      caf::anon_send(peers_->supervisor, std::move(done));
    });
  }

  void evaluate(const Evaluate& wanted) {
    {
      const std::lock_guard lock(held_out_mutex_);
      if (held_out_fetches_ > 0) {
        waiting_evaluation_ = wanted;
        return;
      }
    }
    begin_evaluation(wanted);
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

  void restore(const Restore& order) {
    place_.worker->post([this, order](Context& context) {
      Restored done{number_, order.step, order.round, 0, {}};
      const Status status = restore(context, order, done);
      done.outcome = Outcome::of(status);
      caf::anon_send(peers_->supervisor, std::move(done));
    });
  }

  void write_checkpoint(const WriteCheckpoint& order) {
    const Result<RunProgress> progress = decode_progress(order);
    if (!place_.disk || !progress.ok()) {
      CheckpointWritten done;
      done.step = order.step;
      done.outcome = Outcome::of(
          progress.ok() ? internal_error("this trainer writes no checkpoints") : progress.status());
      caf::anon_send(peers_->supervisor, std::move(done));
      return;
    }
    place_.disk->post([this, step = order.step, progress = *progress, prove = order.prove] {
      caf::anon_send(peers_->supervisor, write_snapshot(parts_, step, progress, prove));
    });
  }

 private:
  // Where the step's gradients over all trainers are; of one that is alone they are its own.
  enum class Summed { kNowhere, kOnHost, kOnDevices };

  // A trainer's part of an evaluation.
  struct Share {
    Evaluate wanted;
    std::atomic<bool> overtaken{false};  // by a later evaluation
    std::deque<FeaturesPtr> left;
    WalkCounts counts;
    double seconds = 0;
  };

  void begin_evaluation(const Evaluate& wanted) {
    const auto share = std::make_shared<Share>();
    share->wanted = wanted;
    const std::vector<FeaturesPtr> all = parts_.held_out.all();
    for (auto i = static_cast<size_t>(wanted.first); i < all.size();
         i += static_cast<size_t>(wanted.stride)) {
      share->left.push_back(all[i]);
    }
    if (share_) share_->overtaken = true;
    share_ = share;
    evaluate_next(share);
  }

  // Sums belong to one membership: a later one begins with none.
  void begin_anew(int64_t membership) {
    if (membership <= membership_) return;
    membership_ = membership;
    std::shared_ptr<void> work;
    if (place_.sums) {
      place_.sums->give_up("the trainers that sum together have changed");
      work = place_.sums->announce();
    }
    place_.worker->post([this, work](Context& context) { place_.trainer->discard(context); });
    feed_.regroup(membership);
  }

  TrainerFeed::Hooks hooks() {
    TrainerFeed::Hooks hooks;
    hooks.compute = [this](TrainerFeed::MicroBatch work) { compute(std::move(work)); };
    hooks.unreadable = [this](const TrainerLease& lease, const Status& why) {
      unreadable(lease, why);
    };
    if (!place_.uploader) return hooks;
    hooks.prepare = [this](const FeaturesPtr& next) {
      // They may be somebody else's to compute before it comes to that.
      place_.uploader->post([this, wanted = std::weak_ptr(next)] {
        const FeaturesPtr features = wanted.lock();
        const Status status = features ? place_.trainer->prepare(features) : ok_status();
        if (!status.ok()) fail(status);
      });
    };
    return hooks;
  }

  void compute(TrainerFeed::MicroBatch work) {
    place_.worker->post([this, work = std::move(work)](Context& context) {
      const TrainerLease& lease = work.lease;
      // Else the sums are of another membership by now, and the ticket somebody else's.
      if (lease.membership == membership_) {
        const double begin = now();
        Computed done{number_, lease.id, lease.token, 0, 0, 0, work.fetch_seconds};
        const Status status = add(context, *work.features, done);
        done.seconds = now() - begin;
        if (!status.ok()) return fail(status);
        caf::anon_send(peers_->mailbox, std::move(done));
      }
      feed_.done();
    });
  }

  // What was put in while the last micro-batches computed is waited for; then the step's sums.
  void reduce_between_devices(int64_t step, int64_t membership) {
    place_.reducer->post([this, step, membership] {
      Status status = place_.sums->wait(step);
      std::vector<double> sums;
      if (status.ok()) {
        sums = encode_sums(place_.trainer->sums(), sum_positions(*parts_.setup));
        status = place_.group->all_reduce_sum(membership, std::span<float>(), sums);
      }
      if (!status.ok()) return reduce_failed(step, membership, status);
      place_.total = decode_sums(sums);
      caf::anon_send(peers_->supervisor, Reduced{number_, step, membership, 0});
    });
  }

  Result<StepSums> collect(Context& context) {
    // A reduction that was overtaken may still be about to end.
    const std::lock_guard lock(gradients_mutex_);
    return place_.trainer->collect(context, place_.gradients);
  }

  Status restore(Context& context, const Restore& order, Restored& done) {
    if (!order.path.empty()) {
      PERCHERON_ASSIGN_OR_RETURN(const ResumePoint point,
                                 read_run_checkpoint(*parts_.files, order.path, parts_.checkpoint));
      if (point.progress.step != order.step) {
        return failed_precondition(
            fmt::format("{} is at step {}, not {}", order.path, point.progress.step, order.step));
      }
      PERCHERON_RETURN_IF_ERROR(place_.trainer->restore(context, point.masters, point.optimizer));
    }
    PERCHERON_ASSIGN_OR_RETURN(done.checksum, place_.trainer->checksum(context));
    return ok_status();
  }

  // One micro-batch a job, each posted by the one before: others on the device get their turn, and
  // the queue stays short whatever is held out. A later evaluation ends an earlier one.
  void evaluate_next(const std::shared_ptr<Share>& share) {
    place_.worker->post([this, share](Context& context) {
      if (share->overtaken) return;
      const Evaluate& wanted = share->wanted;
      if (share->left.empty()) {
        caf::anon_send(peers_->supervisor,
                       Evaluated{number_, wanted.step, wanted.round, share->counts.rounds,
                                 share->counts.tokens, share->seconds});
        return;
      }
      const double begin = now();
      Result<WalkCounts> counts = place_.trainer->evaluate(context, *share->left.front());
      if (!counts.ok()) return fail(counts.status().with_context("evaluation"));
      share->counts.add(*counts);
      share->left.pop_front();
      share->seconds += now() - begin;
      evaluate_next(share);
    });
  }

  // The mailbox sees to it that they are made again.
  void unreadable(const TrainerLease& lease, const Status& why) {
    log_warning("trainer {}: the features of micro-batch ({}, {}): {}", number_, lease.id.epoch,
                lease.id.index, why.message());
    caf::anon_send(peers_->mailbox, Unreadable{number_, lease.id, lease.token});
  }

  double now() const { return static_cast<double>(parts_.clock->monotonic_ns()) * 1e-9; }

  Status add(Context& context, const Features& features, Computed& done) {
    if (features.fingerprint != parts_.fingerprint) {  // invariant 7
      return failed_precondition(
          fmt::format("micro-batch ({}, {}) has features of run {}, this run is {}", done.id.epoch,
                      done.id.index, features.fingerprint, parts_.fingerprint));
    }
    done.tokens = features.batch.tokens();
    done.samples = features.batch.documents();
    return place_.trainer->add(context, features).status();
  }

  void fail(const Status& status) {
    caf::anon_send(peers_->supervisor,
                   Failed{fmt::format("trainer {} on {}", number_, place_.worker->name()),
                          Outcome::of(status), WorkerKind::kTrainer, number_});
  }

  void reduce_failed(int64_t step, int64_t membership, const Status& status) {
    caf::anon_send(peers_->supervisor,
                   ReduceFailed{number_, step, membership, Outcome::of(status)});
  }

  RunParts& parts_;
  TrainerPlace& place_;
  PeersPtr peers_;
  int32_t number_;
  std::atomic<int64_t> membership_{0};  // that the sums belong to
  bool alone_ = true;
  std::vector<int> members_;
  int64_t grouped_ = -1;                // the membership whose group it has or is about to join
  std::optional<LastHandedOut> early_;  // of one that it has not heard of
  Summed summed_ = Summed::kNowhere;    // of the step that is reduced last
  std::mutex gradients_mutex_;          // the worker fills what the reducer sums
  std::shared_ptr<Share> share_;        // of the evaluation that was begun last
  std::mutex held_out_mutex_;
  int held_out_fetches_ = 0;                    // under way
  std::optional<Evaluate> waiting_evaluation_;  // for them
  TrainerFeed feed_;
};

}  // namespace

caf::actor start_trainer(caf::actor_system& system, RunParts& parts, PeersPtr peers, int number) {
  return system.spawn([&parts, peers, number](caf::event_based_actor* self) -> caf::behavior {
    log_unexpected_messages(self, "a trainer");
    const auto trainer = std::make_shared<Trainer>(parts, peers, number);
    return {
        [trainer](const Begin&) { trainer->begin(); },
        [trainer](const TakeTicket& message) { trainer->train(message); },
        [trainer](const Regroup& message) {
          trainer->regroup(message.membership, {message.members.begin(), message.members.end()});
        },
        [trainer](const LastHandedOut& message) { trainer->last_handed_out(message); },
        [trainer](const Reduce& message) { trainer->reduce(message.step, message.membership); },
        [trainer](const Apply& message) { trainer->apply(message); },
        [trainer](const Evaluate& message) { trainer->evaluate(message); },
        [trainer](const TakeSnapshot& message) { trainer->snapshot(message.step); },
        [trainer](const Restore& message) { trainer->restore(message); },
        [trainer](const KeepHeldOut& message) { trainer->keep_held_out(message.ticket); },
        [trainer](const WriteCheckpoint& message) { trainer->write_checkpoint(message); },
    };
  });
}

}  // namespace percheron

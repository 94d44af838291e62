#include "tests/actors/simulation.h"

#include <fmt/format.h>

#include <algorithm>

namespace percheron {

// --- trainers ------------------------------------------------------------------------------------

void Simulation::regroup(const Trainers& members, int64_t membership) {
  groups_[membership].members = members;
  to_mailbox("supervisor", [=, this] { regroup_mailbox(members, membership); });
  for (int t : members) {
    to_trainer("supervisor", t, [=, this](Trainer& me) {
      begin_anew(me, membership);
      me.member = true;
      to_supervisor(name(me.number),
                    [this, t, membership] { supervisor_->regrouped(t, membership); });
    });
  }
}

// Drops what it holds of the membership before, and its sums after the work that is under way and
// adds to them.
void Simulation::begin_anew(Trainer& me, int64_t membership) {
  if (membership <= me.membership) return;
  me.membership = membership;
  take_back(me);
  if (world_.canary != Canary::kOldTicketIsComputed) me.leases.regroup(membership);
  if (world_.canary == Canary::kPartialSumsAreKept) return;
  work(me, 1, [](Trainer& trainer) {
    trainer.sums.clear();
    trainer.last_added.reset();
  });
}

void Simulation::train(Trainer& me, const Work& leased, int64_t membership, bool in_order) {
  begin_anew(me, membership);
  const bool old_counts = world_.canary == Canary::kOldTicketIsComputed;
  const bool keeps_order = in_order && world_.canary != Canary::kOrderIsNotKept;
  const TrainerLease lease{leased.ticket.id, leased.lease, old_counts ? 0 : membership,
                           keeps_order};
  if (!me.leases.add(lease)) return;
  if (me.last_of == leased.ticket.step) take_back(me);
  // The features come from elsewhere, while the trainer does other things.
  if_alive(clock_.now + network_.delay(60), me, [=, this](Trainer& trainer) {
    if (store_.count(lease.id) == 0) return give_up(trainer, lease);
    if (trainer.leases.fetched(lease.token)) go_on(trainer);
  });
}

void Simulation::give_up(Trainer& me, const TrainerLease& lease) {
  if (!me.leases.unreadable(lease.token)) return;
  to_mailbox(name(me.number),
             [=, this, number = me.number] { unreadable(number, lease.id, lease.token); });
  go_on(me);
  put_in_later(me);
}

void Simulation::go_on(Trainer& me) {
  if (const auto lease = me.leases.begin()) add(me, *lease);
}

void Simulation::add(Trainer& me, const TrainerLease& lease) {
  work(me, 40, [this, lease, life = me.life](Trainer& trainer) {
    const MicroBatchId id = lease.id;
    const int number = trainer.number;
    ++trainer.sums[id];
    if ((setup_.assignment == Assignment::kFixed || lease.in_order) && trainer.last_added &&
        id < *trainer.last_added) {
      violate(fmt::format("trainer {} adds micro-batch {} behind {}", number, id.index,
                          trainer.last_added->index));
    }
    trainer.last_added = id;
    to_mailbox(name(number), [=, this] {
      const Trainer& now = trainers_[static_cast<size_t>(number)];
      outcome_.late_words += !now.alive || now.life != life ? 1 : 0;
      computed(number, id, lease.token);
    });
    trainer.leases.done();
    go_on(trainer);
    put_in_later(trainer);
  });
}

// Sums between devices begin when a trainer has nothing more to add, before the step is computed.
void Simulation::last_handed_out(Trainer& me, int64_t step, int64_t membership) {
  if (membership < me.membership) return;
  begin_anew(me, membership);
  me.last_of = step;
  put_in_later(me);
}

// Behind what is under way. Not before the sums of another membership are dropped.
void Simulation::put_in_later(Trainer& me) {
  work(me, 1, [membership = me.membership](Trainer& trainer) {
    if (membership != trainer.membership || !trainer.last_of || !trainer.leases.idle()) return;
    if (trainer.put_in && trainer.put_in->step == *trainer.last_of) return;
    trainer.put_in = StepOfSums{*trainer.last_of, trainer.sums};
  });
}

void Simulation::reduce(Trainer& me, int64_t step, int64_t membership) {
  if (membership != me.membership) return;
  work(me, 10, [this, step, membership](Trainer& trainer) {
    Group& group = groups_.at(membership);
    // A word that the supervisor's has overtaken is missed; in one process none is.
    const bool early = trainer.put_in && trainer.put_in->step == step;
    outcome_.early_sums += early ? 1 : 0;
    group.sums[trainer.number] = early ? trainer.put_in->sums : trainer.sums;
    if (group.sums.size() < group.members.size()) return;
    Sums total;
    for (const auto& [number, sums] : group.sums) {
      for (const auto& [id, times] : sums) total[id] += times;
    }
    group.sums.clear();
    for (int number : group.members) {
      Trainer& member = trainers_[static_cast<size_t>(number)];
      if (!member.alive || member.membership != membership) continue;
      // A death may break it for some and not for others.
      const bool broken = std::any_of(group.members.begin(), group.members.end(), [this](int t) {
        return !trainers_[static_cast<size_t>(t)].alive;
      });
      if (broken && random_.below(2)) {
        to_supervisor(name(number), [=, this] {
          supervisor_->reduce_failed(number, step, membership, unavailable("a member left"));
        });
        continue;
      }
      work(member, 10, [=, this](Trainer& done) {
        done.reduced = total;
        to_supervisor(name(number),
                      [=, this] { supervisor_->reduced(number, step, membership, 0); });
      });
    }
  });
}

void Simulation::apply(Trainer& me, int64_t step, int64_t round) {
  work(me, 10, [this, step, round](Trainer& trainer) {
    if (!trainer.reduced) return violate("a trainer applies what it has not reduced");
    trainer.parameters.push_back(*std::exchange(trainer.reduced, std::nullopt));
    trainer.sums.clear();
    trainer.last_added.reset();
    AppliedReport report;
    report.trainer = trainer.number;
    report.round = round;
    report.checksum = checksum_of(trainer.parameters);
    report.sums.weight = report.sums.loss = 1;
    to_supervisor(name(trainer.number),
                  [this, step, report] { supervisor_->applied(step, report, {}); });
  });
}

void Simulation::evaluate(const Trainers& members, int64_t step, int64_t round) {
  if (world_.canary == Canary::kEvaluationKeepsTheDead && step == evaluation_step_) return;
  evaluation_step_ = step;
  evaluation_round_ = round;
  const auto stride = static_cast<int64_t>(members.size());
  int64_t first = 0;
  for (int t : members) {
    to_trainer("supervisor", t, [=, this](Trainer& me) {
      work(me, 100, [=, this](Trainer& trainer) {
        if (static_cast<int64_t>(trainer.parameters.size()) != step) {
          violate(fmt::format("step {} is evaluated with parameters of step {}", step,
                              trainer.parameters.size()));
        }
        WalkCounts counts;
        for (int64_t i = first; i < held_out_; i += stride) ++measured_[round];
        counts.rounds = {1};
        counts.tokens = {1};
        to_supervisor(name(t), [=, this] { supervisor_->evaluated(t, round, counts, 0.1); });
      });
    });
    ++first;
  }
}

void Simulation::on_evaluation(const EvaluationReport& report) {
  if (report.step != evaluation_step_ || measured_[evaluation_round_] != held_out_) {
    violate(fmt::format("{} of {} held-out micro-batches were measured at step {}",
                        measured_[evaluation_round_], held_out_, report.step));
  }
}

void Simulation::take_snapshot(Trainer& me, int64_t step) {
  work(me, 10, [this, step](Trainer& trainer) {
    snapshots_[trainer.number] = trainer.parameters;
    to_supervisor(name(trainer.number), [this, step] { supervisor_->snapshot_taken(step, 0.01); });
  });
}

void Simulation::write_checkpoint(int64_t step, const RunProgress& progress, bool) {
  if (progress.step != step) violate("a checkpoint remembers another step");
  constexpr uint64_t kUsual = 50, kSlow = 3000;  // milliseconds
  const bool slow = happens(world_.faults.disk);
  // Where trainers are processes they write their snapshots themselves.
  const bool elsewhere = random_.below(2) != 0;
  if (elsewhere) written_elsewhere_ = step;
  network_.after(1 + network_.delay(slow ? kSlow : kUsual) / kMillisecond,
                 [=, this, from = source_, life = life_of(WorkerKind::kTrainer, source_)] {
                   write_snapshot(from, life, elsewhere, progress);
                 });
}

void Simulation::write_snapshot(int trainer, int64_t life, bool elsewhere,
                                const RunProgress& progress) {
  const bool gone =
      !is_alive(WorkerKind::kTrainer, trainer) || life_of(WorkerKind::kTrainer, trainer) != life;
  // Who sees its loss ends the checkpoint, too.
  if (elsewhere && (gone || written_elsewhere_ != progress.step)) return;
  const auto snapshot = snapshots_.find(trainer);
  const bool taken = snapshot != snapshots_.end() &&
                     static_cast<int64_t>(snapshot->second.size()) == progress.step;
  if (!taken && gone) {
    return report_checkpoint(progress.step, unavailable("the trainer that copied it is gone"));
  }
  // Another may have said first that it has one: the trainer does one thing after the other.
  if (!taken) {
    return network_.after(10, [=, this] { write_snapshot(trainer, life, elsewhere, progress); });
  }
  if (elsewhere) written_elsewhere_.reset();
  const Result<std::string> path = write_to_disk(snapshot->second, progress);
  report_checkpoint(progress.step, path);
}

void Simulation::report_checkpoint(int64_t step, const Result<std::string>& path) {
  CheckpointReport report;
  report.step = step;
  if (path.ok()) report.directory = *path;
  report.error = path.status().message();
  to_supervisor("disk", [this, report, status = path.status()] {
    supervisor_->checkpoint_written(report, status);
  });
}

void Simulation::restore(Trainer& me, int64_t step, const std::string& path, int64_t round) {
  work(me, 60, [this, step, path, round](Trainer& trainer) {
    const bool skip = world_.canary == Canary::kNewcomerIsNotRestored ||
                      world_.canary == Canary::kChecksumIsNotCompared;
    uint32_t checksum = checksum_of(trainer.parameters);
    if (!path.empty()) {
      const Result<SimulatedDisk::Saved> saved = disk_.read(path);
      if (!saved.ok()) {
        // Who was given up hears of it after others have made newer ones, and is not waited for.
        if (!supervisor_->there(WorkerKind::kTrainer, trainer.number)) return;
        return violate("a checkpoint that was written is not there: " + path);
      }
      checksum = checksum_of(saved->parameters);
      if (!skip) trainer.parameters = saved->parameters;
      trainer.sums.clear();
      trainer.last_added.reset();
      trainer.reduced.reset();
      if (world_.canary != Canary::kChecksumIsNotCompared)
        checksum = checksum_of(trainer.parameters);
    }
    to_supervisor(name(trainer.number), [this, number = trainer.number, round, checksum] {
      supervisor_->restored(number, round, checksum, ok_status());
    });
  });
}

}  // namespace percheron

// The sampler with its targets, and the mailbox.

#include "tests/actors/simulation.h"

#include <algorithm>

namespace percheron {

// --- sampler and targets -------------------------------------------------------------------------

std::optional<WorkUnit> Simulation::next_unit() {
  if (next_held_out_ < held_out_) return WorkUnit{{-1, next_held_out_++}, next_step_, 1, 1};
  if (next_step_ == setup_.steps.steps()) return std::nullopt;
  const PlannedStep step = setup_.steps.at(next_step_);
  const WorkUnit unit{
      {step.epoch, step.first + in_step_}, next_step_, 1, static_cast<uint64_t>(step.count)};
  if (++in_step_ == step.count) {
    in_step_ = 0;
    ++next_step_;
  }
  return unit;
}

void Simulation::pump_sampler() {
  while (const auto next = asking_.next(sampler_, 0)) {
    const int target = next->first;
    const Production production = next->second;
    to_supervisor("sampler",
                  [=, this] { supervisor_->target_work(target, production.unit.id, true, 0, 0); });
    Target& me = targets_[static_cast<size_t>(target)];
    me.given.push_back(production);
    me.flow.given();
    begin_pass(target);
  }
  report_exhausted();
}

// Passes are put in one after the other; what follows one goes on beside the next.
void Simulation::begin_pass(int target) {
  Target& me = targets_[static_cast<size_t>(target)];
  if (!me.flow.begin()) return;
  if (me.flow.in_flight() > TargetFlow::kInFlightMax) violate("a target has too many passes");
  outcome_.overlaps += me.flow.in_flight() > 1 ? 1 : 0;
  const Production production = me.given.front();
  me.given.pop_front();
  const int64_t life = me.life, begun = clock_.now + kMillisecond + network_.delay(20);
  me.busy_until = std::max(me.busy_until, begun) + network_.delay(20);
  network_.at(begun, [=, this] {
    Target& now = targets_[static_cast<size_t>(target)];
    if (!now.alive || now.life != life) return;
    now.flow.begun();
    begin_pass(target);
    ask(target);
  });
  network_.at(me.busy_until + 1, [=, this] {
    Target& now = targets_[static_cast<size_t>(target)];
    const bool late = !now.alive || now.life != life;
    if (late && random_.below(2)) return;  // Else a word of the dead.
    outcome_.late_words += late ? 1 : 0;
    to_sampler(target_name(target, life), [=, this] { produced(target, production); });
    if (late) return;
    now.flow.ended();
    begin_pass(target);
    ask(target);
  });
}

void Simulation::ask(int target) {
  Target& me = targets_[static_cast<size_t>(target)];
  if (!me.flow.ask()) return;
  to_sampler(target_name(target, me.life), [=, this] { target_idle(target); });
}

void Simulation::produced(int target, const Production& production) {
  const MicroBatchId id = production.unit.id;
  const bool counts = sampler_.produced(id, target, production.lease);
  if (!sampler_.target_has_leases(target)) asking_.has_nothing(target);
  if (!counts) return settled(target);
  to_supervisor("sampler", [=, this] { supervisor_->target_work(target, id, false, 1, 0.001); });
  if (id.epoch < 0) {
    sampler_.freed(id);
    if (--held_out_left_ == 0) to_supervisor("sampler", [this] { supervisor_->held_out_ready(); });
  } else {
    store_[id] = node_of(target);
    Ticket ticket;
    ticket.id = id;
    ticket.step = production.unit.step;
    ticket.node = ticket.home = node_of(target);
    ticket.target = target;
    ticket.bytes = 1;
    to_mailbox("sampler", [this, ticket] {
      if (mailbox_.put(ticket) == MailboxPolicy::Put::kDuplicate) violate("a ticket comes twice");
      pump_mailbox();
    });
  }
  settled(target);
}

void Simulation::settled(int target) {
  if (retiring_targets_.count(target) != 0 && !sampler_.target_has_leases(target)) {
    return let_go(target);
  }
  pump_sampler();
}

void Simulation::retire_target(int target) {
  if (lost_targets_.count(target) != 0) return;
  retiring_targets_.insert(target);
  asking_.remove(target);
  if (!sampler_.target_has_leases(target)) let_go(target);
}

void Simulation::let_go(int target) {
  if (sampler_.target_has_leases(target)) violate("a target leaves with a micro-batch");
  retiring_targets_.erase(target);
  lost_targets_.insert(target);
  to_supervisor("sampler", [=, this] { supervisor_->worker_lost(WorkerKind::kTarget, target); });
  pump_sampler();
}

void Simulation::lose_target(int target) {
  lost_targets_.insert(target);
  retiring_targets_.erase(target);
  asking_.remove(target);
  asking_.room_changed();
  if (world_.canary == Canary::kTargetLeaseIsForgotten) return;
  const auto count = static_cast<int64_t>(sampler_.target_lost(target));
  to_supervisor("sampler", [=, this] { supervisor_->queued_again(WorkerKind::kTarget, count); });
  pump_sampler();
}

void Simulation::lose_node(int node) {
  sampler_.leases_of_node_lost(node);
  std::erase_if(store_, [node](const auto& entry) { return entry.second == node; });
  to_mailbox("sampler", [this, node] { produce_again(mailbox_.node_lost(node)); });
  asking_.room_changed();
  pump_sampler();
}

void Simulation::produce_again(const std::vector<MicroBatchId>& ids) {
  if (ids.empty()) return;
  to_sampler("mailbox", [this, ids, rewinds = mailbox_rewinds_] {
    if (rewinds != rewinds_) return;
    for (MicroBatchId id : ids) sampler_.produce_again(id);
    asking_.room_changed();
    pump_sampler();
  });
}

void Simulation::rewind_sampler(int64_t step) {
  if (held_out_left_ > 0) held_out_left_ = held_out_;
  next_held_out_ = held_out_left_ > 0 ? 0 : held_out_;
  next_step_ = step;
  in_step_ = 0;
  next_epoch_ = setup_.steps.begin(step).epoch;
  sampler_.restart();
  store_.clear();
  to_mailbox("sampler", [this, step, rewinds = ++rewinds_] {
    mailbox_.restart();
    mailbox_rewinds_ = rewinds;
    to_supervisor("mailbox", [this, step] { supervisor_->rewound(step); });
  });
  sampler_.set_open_step(step);
  asking_.room_changed();
  pump_sampler();
}

void Simulation::free_step(const PlannedStep& range) {
  for (int64_t i = range.first; i < range.first + range.count; ++i) {
    sampler_.freed({range.epoch, i});
    store_.erase({range.epoch, i});
  }
  sampler_.set_open_step(range.step + 1);
  asking_.room_changed();
  pump_sampler();
}

void Simulation::report_exhausted() {
  while (next_epoch_ < setup_.steps.epochs() && sampler_.epoch_exhausted(next_epoch_)) {
    to_supervisor("sampler", [this, epoch = next_epoch_] { supervisor_->epoch_exhausted(epoch); });
    ++next_epoch_;
  }
}

// --- mailbox -------------------------------------------------------------------------------------

void Simulation::pump_mailbox() {
  while (const auto next = mailbox_.hand_out(clock_.now)) {
    const int trainer = next->trainer;
    const Work work = next->work;
    const int64_t membership = mailbox_.membership();
    const bool in_order = mailbox_.in_order();
    outcome_.ahead += work.ahead ? 1 : 0;
    send_work(trainer, work.ticket.id, true, membership);
    to_trainer("mailbox", trainer,
               [=, this](Trainer& me) { train(me, work, membership, in_order); });
  }
  const auto last = mailbox_.take_last_handed_out();
  if (!last) return;
  for (int trainer : mailbox_.members()) {
    to_trainer("mailbox", trainer,
               [this, step = last->step, membership = mailbox_.membership()](Trainer& me) {
                 last_handed_out(me, step, membership);
               });
  }
}

void Simulation::computed(int trainer, MicroBatchId id, int64_t lease) {
  bool counts = mailbox_.computed(id, trainer, lease, clock_.now);
  if (!counts && world_.canary == Canary::kStaleLeaseCounts && mailbox_.open() &&
      mailbox_.open()->contains(id)) {
    // As if no lease had a fence: whoever computed it settles the lease of its new owner.
    for (int64_t other = lease + 1; other < lease + 40 && !counts; ++other) {
      for (int owner : mailbox_.members()) counts = counts || mailbox_.computed(id, owner, other);
    }
  }
  send_work(trainer, id, false, counts ? mailbox_.membership() : -1);
  pump_mailbox();
  if (!counts || !mailbox_.step_computed()) return;
  const int64_t step = mailbox_.open()->step, membership = mailbox_.membership();
  if (world_.canary == Canary::kFeaturesGoBeforeTheCommit) {
    to_sampler("mailbox", [this, range = *mailbox_.open()] { free_step(range); });
  }
  to_supervisor("mailbox", [=, this] { supervisor_->step_computed(step, membership); });
}

void Simulation::unreadable(int trainer, MicroBatchId id, int64_t lease) {
  if (!mailbox_.unreadable(id, trainer, lease, clock_.now)) return;
  ++outcome_.unreadable;
  if (world_.nodes == 1) violate("features that are needed are not in the only store");
  send_work(trainer, id, false, mailbox_.membership());
  produce_again({id});
  pump_mailbox();
}

void Simulation::commit_in_mailbox(int64_t step) {
  if (!mailbox_.open() || mailbox_.open()->step != step || !mailbox_.step_computed()) {
    return violate("a step is committed that is not computed");
  }
  const PlannedStep range = *mailbox_.open();
  mailbox_.commit_step();
  to_sampler("mailbox", [this, range, rewinds = mailbox_rewinds_] {
    if (rewinds == rewinds_) free_step(range);
  });
}

void Simulation::regroup_mailbox(const Trainers& members, int64_t membership) {
  if (membership == 0) return;
  const std::vector<int> before = mailbox_.members();
  if (world_.canary == Canary::kStepGoesOnAfterALoss && members.size() < before.size()) return;
  const int64_t queued_before = mailbox_.queued_again();
  Trainers served = members;
  if (world_.canary == Canary::kRetiredTrainerComputes) {
    for (int trainer : before) {
      if (place_of(WorkerKind::kTrainer, trainer).retired) served.push_back(trainer);
    }
    std::sort(served.begin(), served.end());
    served.erase(std::unique(served.begin(), served.end()), served.end());
  }
  produce_again(mailbox_.change_members(served, membership));
  for (int trainer : members) {
    if (std::find(before.begin(), before.end(), trainer) == before.end()) wait_in_line(trainer);
  }
  const int64_t again = mailbox_.queued_again() - queued_before;
  to_supervisor("mailbox", [=, this] { supervisor_->queued_again(WorkerKind::kTrainer, again); });
  pump_mailbox();
}

}  // namespace percheron

#include "tests/actors/mortal_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "tests/actors/forwarding_trainer.h"

namespace percheron {
namespace {

/// Lets a worker die before a call, which goes on when it is let go.
class Fate {
 public:
  Fate(WorkerKind kind, int number, RunControl& control, std::shared_ptr<Death> death)
      : kind_(kind), number_(number), control_(control), death_(std::move(death)) {}

  void reach(Moment moment) {
    if (!death_->strikes(moment)) return;
    control_.worker_lost(kind_, number_);
    death_->wait();
  }

 private:
  WorkerKind kind_;
  int number_;
  RunControl& control_;
  std::shared_ptr<Death> death_;
};

class MortalTrainer final : public ForwardingTrainer {
 public:
  MortalTrainer(std::unique_ptr<StepTrainer> inner, Fate fate)
      : ForwardingTrainer(std::move(inner)), fate_(std::move(fate)) {}

  Result<StepSums> add(Context& context, const Features& features) override {
    fate_.reach(Moment::kAdd);
    return ForwardingTrainer::add(context, features);
  }
  Result<StepSums> collect(Context& context, std::vector<float>& gradients) override {
    fate_.reach(Moment::kCollect);
    return ForwardingTrainer::collect(context, gradients);
  }
  Status reduce(Stream& stream, DeviceCollective& collective, int64_t attempt) override {
    fate_.reach(Moment::kReduce);
    return ForwardingTrainer::reduce(stream, collective, attempt);
  }
  Result<AppliedStep> apply(Context& context, const std::vector<float>* gradients,
                            const StepSums& total, int64_t step) override {
    fate_.reach(Moment::kApply);
    return ForwardingTrainer::apply(context, gradients, total, step);
  }
  Result<AppliedStep> apply_reduced(Context& context, const StepSums& total,
                                    int64_t step) override {
    fate_.reach(Moment::kApply);
    return ForwardingTrainer::apply_reduced(context, total, step);
  }
  Result<TrainerSnapshot> snapshot(Context& context, int64_t step) override {
    fate_.reach(Moment::kSnapshot);
    return ForwardingTrainer::snapshot(context, step);
  }
  Result<WalkCounts> evaluate(Context& context, const Features& features) override {
    fate_.reach(Moment::kEvaluate);
    return ForwardingTrainer::evaluate(context, features);
  }

 private:
  Fate fate_;
};

class MortalMaker final : public FeatureMaker {
 public:
  MortalMaker(std::unique_ptr<FeatureMaker> inner, Fate fate)
      : inner_(std::move(inner)), fate_(std::move(fate)) {}
  Result<std::unique_ptr<FeaturesUnderWay>> begin(Context& context, MicroBatch batch) override {
    fate_.reach(Moment::kMake);
    return inner_->begin(context, std::move(batch));
  }

 private:
  std::unique_ptr<FeatureMaker> inner_;
  Fate fate_;
};

}  // namespace

// After any step.
constexpr int64_t kLater = std::numeric_limits<int64_t>::max();

class MortalRun::Observer final : public RunObserver {
 public:
  explicit Observer(MortalRun& run) : run_(run) {}
  void on_step(const StepReport& report) override {
    run_.observer_.on_step(report);
    if (run_.on_step) run_.on_step(report);
    run_.bring_back(report.step);
  }
  void on_evaluation(const EvaluationReport& report) override {
    run_.observer_.on_evaluation(report);
  }
  void on_checkpoint(const CheckpointReport& report) override {
    run_.observer_.on_checkpoint(report);
    if (run_.on_checkpoint) run_.on_checkpoint(report);
  }
  void on_event(const std::string& text) override { run_.observer_.on_event(text); }
  void on_state(const StateReport& report) override {
    run_.states_.push_back(report);
    if (run_.on_state) run_.on_state(report);
    // A run without anybody waits for those who come back.
    if (report.state == RunState::kWaiting) run_.bring_back(kLater);
    if (report.state == RunState::kEnded) {
      for (const Planned& planned : run_.deaths_) planned.death->let_go();
    }
  }
  void on_workers(const WorkersReport& report) override {
    run_.workers_.push_back(report);
    run_.let_go_of_known(report);
  }

 private:
  MortalRun& run_;
};

void MortalRun::bring_back(int64_t steps_done) {
  for (Planned& planned : deaths_) {
    const Plan& plan = planned.plan;
    if (planned.told_back || !planned.death->struck() || !plan.back_at) continue;
    if (steps_done < *plan.back_at) continue;
    planned.told_back = true;
    planned.death->let_go();
    control_.worker_ready(plan.kind, plan.number);
  }
}

void MortalRun::let_go_of_known(const WorkersReport& report) {
  for (const Planned& planned : deaths_) {
    const Plan& plan = planned.plan;
    const bool there =
        plan.kind == WorkerKind::kTarget
            ? report.targets.count(plan.number) != 0
            : std::count(report.trainers.begin(), report.trainers.end(), plan.number) != 0;
    if (planned.death->struck() && !plan.late && !there) planned.death->let_go();
  }
}

Result<RunSummary> MortalRun::train() {
  Observer observer(*this);
  const std::atomic<int> none{0};
  RunEnvironment environment{system_files(), system_clock(), observer, none, 120, 1};
  environment.worker_wait_seconds = worker_wait_seconds;
  environment.control = &control_;
  environment.gradient_bucket_bytes = gradient_bucket_bytes;
  PERCHERON_ASSIGN_OR_RETURN(std::shared_ptr<const RunSetup> setup,
                             resolve_run(run_, system_files()));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<RunParts> parts,
                             make_run_parts(std::move(setup), environment));
  for (const Planned& planned : deaths_) {
    const Plan& plan = planned.plan;
    const Fate fate(plan.kind, plan.number, control_, planned.death);
    const auto number = static_cast<size_t>(plan.number);
    if (plan.kind == WorkerKind::kTrainer) {
      std::unique_ptr<StepTrainer>& trainer = parts->trainers[number].trainer;
      trainer = std::make_unique<MortalTrainer>(std::move(trainer), fate);
    } else {
      std::unique_ptr<FeatureMaker>& maker = parts->targets[number].maker;
      maker = std::make_unique<MortalMaker>(std::move(maker), fate);
    }
  }
  if (prepare) prepare(*parts);
  return run_actors(*parts, environment);
}

std::map<int64_t, StepReport> MortalRun::steps() const {
  std::map<int64_t, StepReport> steps;
  for (const StepReport& report : observer_.steps()) steps[report.step] = report;
  return steps;
}

bool MortalRun::all_struck() const {
  for (const Planned& planned : deaths_) {
    if (!planned.death->struck()) return false;
  }
  return true;
}

}  // namespace percheron

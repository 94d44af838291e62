#include "actors/run_settings.h"

#include <fmt/format.h>

#include <cmath>

namespace percheron {
namespace {

constexpr double kDrafterLayersMax = 1024;
constexpr double kBlockSizeMax = 1024;
constexpr double kTokensMax = 2147483647;  // the target's own limits are narrower
constexpr double kAnchorsMax = 1 << 20;

TeacherLoss teacher_loss(proto::Loss::Kind kind) {
  switch (kind) {
    case proto::Loss::KL: return TeacherLoss::kKlDivergence;
    case proto::Loss::REVERSE_KL: return TeacherLoss::kReverseKl;
    case proto::Loss::JENSEN_SHANNON: return TeacherLoss::kJensenShannon;
    case proto::Loss::TEACHER_ARGMAX: return TeacherLoss::kTeacherArgmax;
    case proto::Loss::TOTAL_VARIATION: return TeacherLoss::kTotalVariation;
    case proto::Loss::NEGATIVE_LOG_ACCEPT: return TeacherLoss::kNegativeLogAccept;
    case proto::Loss::HYBRID: return TeacherLoss::kHybrid;
    case proto::Loss::SOFT_CE:
    case proto::Loss::DATA_LABELS: return TeacherLoss::kSoftCrossEntropy;
  }
  return TeacherLoss::kSoftCrossEntropy;
}

Denominator denominator(proto::Loss::Denominator value) {
  switch (value) {
    case proto::Loss::SUPERVISED: return Denominator::kSupervised;
    case proto::Loss::VALID: return Denominator::kValid;
    case proto::Loss::ALL: return Denominator::kAll;
    case proto::Loss::WEIGHTS: return Denominator::kWeights;
    case proto::Loss::DOCUMENTS: return Denominator::kDocuments;
  }
  return Denominator::kSupervised;
}

// The decay that published DFlash recipes use for a block size.
double default_gamma(int64_t block_size) {
  if (block_size == 16) return 7;
  if (block_size == 10) return 5;
  if (block_size == 8) return 4;
  return static_cast<double>(block_size) / 2;
}

EpochOrder epoch_order(proto::Data::Order order) {
  switch (order) {
    case proto::Data::PACKED: return EpochOrder::kPacked;
    case proto::Data::SORTED: return EpochOrder::kSorted;
    case proto::Data::SHUFFLED: return EpochOrder::kShuffled;
    case proto::Data::BUCKETED: return EpochOrder::kBucketed;
  }
  return EpochOrder::kPacked;
}

TooLong too_long(proto::Data::TooLong rule) {
  switch (rule) {
    case proto::Data::REFUSE: return TooLong::kRefuse;
    case proto::Data::TRUNCATE: return TooLong::kTruncate;
    case proto::Data::SKIP: return TooLong::kSkip;
  }
  return TooLong::kRefuse;
}

Status check_range(const char* key, double value, double low, double high) {
  if (value >= low && value <= high) return ok_status();
  return invalid_argument(fmt::format("{} is {}: it must be from {} to {}", key, value, low, high));
}

// What only the other kind of drafter reads is checked too: a number beyond its range is a mistake.
Status check_loss(const LossConfig& loss, bool gamma_is_read) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  PERCHERON_RETURN_IF_ERROR(check_range("loss.ttt_steps", number(loss.ttt_steps), 1, 64));
  PERCHERON_RETURN_IF_ERROR(check_range("loss.step_decay", loss.step_decay, 0, 1));
  PERCHERON_RETURN_IF_ERROR(check_range("loss.mask_shift", number(loss.mask_shift), 0, 2));
  if (gamma_is_read) {
    PERCHERON_RETURN_IF_ERROR(check_range("loss.gamma", loss.gamma, 1e-3, 1e6));
  }
  PERCHERON_RETURN_IF_ERROR(check_range("loss.dpace_alpha", loss.dpace_alpha, 0, 1));
  PERCHERON_RETURN_IF_ERROR(
      check_range("loss.anchors_max", number(loss.anchors_max), 1, kAnchorsMax));
  return check_range("loss.supervised_per_anchor", loss.supervised_per_anchor, 0, 1e6);
}

}  // namespace

Status check_drafter_numbers(const proto::Drafter& given) {
  const auto check = [](const char* key, bool has, int64_t value, double low, double high) {
    return has ? check_range(key, static_cast<double>(value), low, high) : ok_status();
  };
  PERCHERON_RETURN_IF_ERROR(
      check("drafter.layers", given.has_layers(), given.layers(), 1, kDrafterLayersMax));
  PERCHERON_RETURN_IF_ERROR(check("drafter.draft_vocab_size", given.has_draft_vocab_size(),
                                  given.draft_vocab_size(), 1, kTokensMax));
  PERCHERON_RETURN_IF_ERROR(
      check("drafter.block_size", given.has_block_size(), given.block_size(), 2, kBlockSizeMax));
  PERCHERON_RETURN_IF_ERROR(check("drafter.mask_token_id", given.has_mask_token_id(),
                                  given.mask_token_id(), 0, kTokensMax));
  return check("drafter.sliding_window", given.has_sliding_window(), given.sliding_window(), 0,
               kTokensMax);
}

DrafterKind drafter_kind(const proto::Run& run) {
  return run.drafter().kind() == proto::Drafter::DFLASH ? DrafterKind::kDflash
                                                        : DrafterKind::kEagle3;
}

DrafterChoice drafter_choice(const proto::Drafter& drafter) {
  DrafterChoice choice;
  choice.kind =
      drafter.kind() == proto::Drafter::DFLASH ? DrafterKind::kDflash : DrafterKind::kEagle3;
  choice.layers = drafter.layers();
  choice.capture.assign(drafter.capture().begin(), drafter.capture().end());
  choice.draft_vocab_size = drafter.draft_vocab_size();
  choice.norm_before_residual = drafter.norm_before_residual();
  choice.norm_before_fc = drafter.norm_before_fc();
  choice.norm_output = drafter.norm_output();
  choice.freeze_head = drafter.freeze_head();
  choice.block_size = drafter.block_size();
  choice.sliding_window = drafter.sliding_window();
  choice.sliding_layers.assign(drafter.sliding_layers().begin(), drafter.sliding_layers().end());
  return choice;
}

Result<PlanOptions> resolve_plan_options(const proto::Run& run) {
  const proto::Data& given = run.data();
  PlanOptions options;
  options.seed = given.seed();
  options.order = epoch_order(given.order());
  options.token_budget = given.token_budget();
  options.too_long = too_long(given.too_long());
  options.buckets = given.buckets();
  options.batch_samples_max = given.batch_samples_max();
  const std::string order(epoch_order_name(options.order));
  if (given.has_buckets() && options.order != EpochOrder::kBucketed) {
    return invalid_argument(
        fmt::format("data.buckets is {}, but data.order is {}, which has none: set data.order to "
                    "bucketed or leave data.buckets out",
                    options.buckets, order));
  }
  if (given.has_batch_samples_max() && !is_padded(options.order)) {
    return invalid_argument(fmt::format(
        "data.batch_samples_max is {}, but data.order is {}, which packs by data.token_budget "
        "alone: take an order that pads or leave data.batch_samples_max out",
        options.batch_samples_max, order));
  }
  PERCHERON_RETURN_IF_ERROR(check_range("data.buckets", static_cast<double>(options.buckets), 1,
                                        static_cast<double>(kBucketsMax)));
  PERCHERON_RETURN_IF_ERROR(check_range("data.batch_samples_max",
                                        static_cast<double>(options.batch_samples_max), 1,
                                        static_cast<double>(kBatchSamplesMax)));
  const uint64_t cache =
      run.features().cache_memory_bytes_max() + run.features().cache_disk_bytes_max();
  const bool pads_anew =
      options.order == EpochOrder::kShuffled || options.order == EpochOrder::kBucketed;
  if (pads_anew && cache > 0) {
    return invalid_argument(fmt::format(
        "features.cache_* keeps features for later epochs, but data.order {} pads a sample to "
        "another length in each, so that they would not be found: set features.cache_* to 0 or "
        "data.order to packed or sorted",
        order));
  }
  return options;
}

Result<LossConfig> resolve_loss(const proto::Run& run, const DrafterConfig& drafter) {
  const proto::Loss& given = run.loss();
  const bool eagle3 = drafter.kind == DrafterKind::kEagle3;
  const proto::Loss::Kind kind =
      given.has_kind() ? given.kind() : (eagle3 ? proto::Loss::SOFT_CE : proto::Loss::DATA_LABELS);
  if (eagle3 && kind == proto::Loss::DATA_LABELS) {
    return invalid_argument(
        "loss.kind is data_labels, but an EAGLE-3 drafter learns from the target's distribution: "
        "take soft_ce, kl or another teacher loss");
  }
  LossConfig loss;
  loss.hard_labels = kind == proto::Loss::DATA_LABELS;
  loss.teacher_loss = teacher_loss(kind);
  loss.denominator = given.has_denominator()
                         ? denominator(given.denominator())
                         : (eagle3 ? Denominator::kSupervised : Denominator::kWeights);
  loss.ttt_steps = given.ttt_steps();
  loss.step_decay = given.step_decay();
  loss.mask_shift = given.mask_shift();
  loss.gate_on_draft_vocab = given.gate_on_draft_vocab();
  switch (given.position_weight()) {
    case proto::Loss::NONE: loss.position_weight = PositionWeight::kNone; break;
    case proto::Loss::EXPONENTIAL: loss.position_weight = PositionWeight::kExponential; break;
    case proto::Loss::DPACE: loss.position_weight = PositionWeight::kDpace; break;
  }
  loss.gamma = given.has_gamma() ? given.gamma() : default_gamma(drafter.block_size);
  loss.dpace_alpha = given.dpace_alpha();
  loss.anchors_max = given.anchors_max();
  loss.supervised_per_anchor = given.supervised_per_anchor();
  loss.seed = run.data().seed();
  PERCHERON_RETURN_IF_ERROR(check_loss(loss, given.has_gamma() || !eagle3));
  return loss;
}

Result<OptimizerConfig> resolve_optimizer(const proto::Run& run) {
  const proto::Optimizer& given = run.optimizer();
  OptimizerConfig config;
  config.kind =
      given.kind() == proto::Optimizer::MUON ? OptimizerKind::kMuon : OptimizerKind::kAdamw;
  const double usual = drafter_kind(run) == DrafterKind::kEagle3 ? 1e-4 : 6e-4;
  config.learning_rate = given.has_learning_rate() ? given.learning_rate() : usual;
  config.beta1 = given.beta1();
  config.beta2 = given.beta2();
  config.epsilon = given.epsilon();
  config.weight_decay = given.weight_decay();
  config.clip_norm = given.clip_norm();
  config.muon_learning_rate = given.muon_learning_rate();
  config.muon_momentum = given.muon_momentum();
  config.muon_weight_decay = given.muon_weight_decay();
  PERCHERON_RETURN_IF_ERROR(check_optimizer_config(config));
  return config;
}

Result<Schedule> resolve_schedule(const proto::Schedule& given, int64_t steps) {
  PERCHERON_RETURN_IF_ERROR(check_range("schedule.warmup_ratio", given.warmup_ratio(), 0, 1));
  PERCHERON_RETURN_IF_ERROR(check_range("schedule.decay_ratio", given.decay_ratio(), 0, 1));
  PERCHERON_RETURN_IF_ERROR(check_range("schedule.floor", given.floor(), 0, 1));
  Schedule schedule;
  switch (given.kind()) {
    case proto::Schedule::COSINE: schedule.shape = ScheduleShape::kCosine; break;
    case proto::Schedule::LINEAR: schedule.shape = ScheduleShape::kLinear; break;
    case proto::Schedule::CONSTANT: schedule.shape = ScheduleShape::kConstant; break;
    case proto::Schedule::WSD: schedule.shape = ScheduleShape::kWsd; break;
  }
  schedule.total_steps = steps;
  schedule.warmup_steps = given.has_warmup_steps()
                              ? given.warmup_steps()
                              : warmup_steps_from_ratio(given.warmup_ratio(), steps);
  if (schedule.warmup_steps > steps) {
    return invalid_argument(fmt::format("schedule.warmup_steps is {}, but the run has {} steps",
                                        schedule.warmup_steps, steps));
  }
  schedule.floor = given.floor();
  schedule.decay_steps = static_cast<int64_t>(
      std::llround(given.decay_ratio() * static_cast<double>(steps - schedule.warmup_steps)));
  PERCHERON_RETURN_IF_ERROR(check_schedule(schedule));
  return schedule;
}

}  // namespace percheron

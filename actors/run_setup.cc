#include "actors/run_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_set>

#include "actors/offline_setup.h"
#include "actors/policy/credits.h"
#include "actors/run_settings.h"
#include "actors/template_check.h"
#include "actors/tokenizer_check.h"
#include "base/hash.h"
#include "model/drafter_config.h"
#include "model/drafter_files.h"
#include "model/target_shard.h"

namespace percheron {
namespace {

Status require(const std::string& value, const char* key, const char* what) {
  if (!value.empty()) return ok_status();
  return invalid_argument(fmt::format("{} is missing: give {}", key, what));
}

Status at_least(const char* key, int64_t value, int64_t least) {
  if (value >= least) return ok_status();
  return invalid_argument(fmt::format("{} is {}: it must be at least {}", key, value, least));
}

Status at_most(const char* key, int64_t value, int64_t most) {
  if (value <= most) return ok_status();
  return invalid_argument(fmt::format("{} is {}: it must be at most {}", key, value, most));
}

Status check_evaluation(const proto::Evaluate& evaluate) {
  PERCHERON_RETURN_IF_ERROR(at_least("evaluate.every_steps", evaluate.every_steps(), 0));
  PERCHERON_RETURN_IF_ERROR(
      at_least("evaluate.conversations_max", evaluate.conversations_max(), 1));
  PERCHERON_RETURN_IF_ERROR(
      at_least("evaluate.decode_conversations", evaluate.decode_conversations(), 0));
  PERCHERON_RETURN_IF_ERROR(at_least("evaluate.new_tokens_max", evaluate.new_tokens_max(), 1));
  return at_most("evaluate.new_tokens_max", evaluate.new_tokens_max(), kNewTokensMax);
}

Status check_numbers(const proto::Run& run) {
  PERCHERON_RETURN_IF_ERROR(
      require(run.target().path(), "target.path", "a Hugging Face directory"));
  PERCHERON_RETURN_IF_ERROR(
      require(run.output().directory(), "output.directory", "where checkpoints are written"));
  PERCHERON_RETURN_IF_ERROR(at_least("target.compare_tokens", run.target().compare_tokens(), 0));
  PERCHERON_RETURN_IF_ERROR(
      at_most("target.compare_tokens", run.target().compare_tokens(), kCompareTokensMax));
  if (run.data().train().empty()) {
    return invalid_argument("data.train is missing: give token shards, or directories of them");
  }
  const proto::Train& train = run.train();
  if (!train.has_epochs() && !train.has_steps()) {
    return invalid_argument("one of train.epochs and train.steps must be given");
  }
  if (train.has_epochs()) {
    PERCHERON_RETURN_IF_ERROR(at_least("train.epochs", train.epochs(), 1));
    PERCHERON_RETURN_IF_ERROR(at_most("train.epochs", train.epochs(), kEpochsMax));
  }
  if (train.has_steps()) {
    PERCHERON_RETURN_IF_ERROR(at_least("train.steps", train.steps(), 1));
    PERCHERON_RETURN_IF_ERROR(at_most("train.steps", train.steps(), kMicroBatchesMax));
  }
  PERCHERON_RETURN_IF_ERROR(
      at_least("train.micro_batches_per_step", train.micro_batches_per_step(), 1));
  PERCHERON_RETURN_IF_ERROR(at_most("train.micro_batches_per_step", train.micro_batches_per_step(),
                                    kStepMicroBatchesMax));
  PERCHERON_RETURN_IF_ERROR(at_least("train.log_every_steps", train.log_every_steps(), 1));
  PERCHERON_RETURN_IF_ERROR(at_least("checkpoint.every_steps", run.checkpoint().every_steps(), 0));
  PERCHERON_RETURN_IF_ERROR(at_least("checkpoint.keep", run.checkpoint().keep(), 1));
  PERCHERON_RETURN_IF_ERROR(check_drafter_numbers(run.drafter()));
  return check_evaluation(run.evaluate());
}

// --- data ----------------------------------------------------------------------------------------

Result<std::shared_ptr<const TokenDataset>> open_dataset(
    FileSystem& files, const char* key,
    const google::protobuf::RepeatedPtrField<std::string>& paths) {
  const std::vector<std::string> list(paths.begin(), paths.end());
  Result<TokenDataset> dataset = TokenDataset::open(files, list);
  if (!dataset.ok()) return dataset.status().with_context(key);
  return std::make_shared<const TokenDataset>(std::move(dataset).value());
}

std::string row_hash(const TokenDataset& dataset, int64_t sample) {
  return content_hash(std::as_bytes(dataset.tokens(sample)));
}

// Soup#680: rows that are both trained on and measured.
int64_t count_shared(const TokenDataset& train, const TokenDataset& held_out,
                     const SampleSelection& measured) {
  std::unordered_set<std::string> rows;
  for (uint32_t sample : measured.samples) rows.insert(row_hash(held_out, sample));
  std::unordered_set<std::string> shared;
  for (int64_t i = 0; i < train.samples(); ++i) {
    const std::string hash = row_hash(train, i);
    if (rows.count(hash) != 0) shared.insert(hash);
  }
  return static_cast<int64_t>(shared.size());
}

Status check_same_origin(const Passport& train, const Passport& held_out) {
  if (train.vocab_size != held_out.vocab_size) {
    return invalid_argument(fmt::format(
        "data.train and data.held_out were prepared for vocabularies of {} and {} tokens: prepare "
        "both with the target's own tokenizer",
        train.vocab_size, held_out.vocab_size));
  }
  if (train.tokenizer_hash == held_out.tokenizer_hash &&
      train.template_hash == held_out.template_hash) {
    return ok_status();
  }
  const bool tokenizer = train.tokenizer_hash != held_out.tokenizer_hash;
  return invalid_argument(fmt::format(
      "data.train and data.held_out were prepared with different {}s ({} and {}): prepare both "
      "with the target's own",
      tokenizer ? "tokenizer" : "chat template",
      tokenizer ? train.tokenizer_hash : train.template_hash,
      tokenizer ? held_out.tokenizer_hash : held_out.template_hash));
}

Status resolve_held_out(const proto::Run& run, FileSystem& files, RunData& data) {
  PERCHERON_ASSIGN_OR_RETURN(data.held_out,
                             open_dataset(files, "data.held_out", run.data().held_out()));
  PERCHERON_RETURN_IF_ERROR(check_same_origin(data.train->passport(), data.held_out->passport()));
  data.held_out_options = data.options;
  data.held_out_options.too_long = TooLong::kTruncate;
  data.held_out_options.order = EpochOrder::kPacked;  // Orders are compared on equal terms.
  Result<SampleSelection> selection = select_samples(*data.held_out, data.held_out_options);
  if (!selection.ok()) return selection.status().with_context("data.held_out");
  data.held_out_selection = std::move(selection).value();
  SampleSelection& chosen = data.held_out_selection;
  const size_t count =
      std::min(chosen.samples.size(), static_cast<size_t>(run.evaluate().conversations_max()));
  chosen.samples.resize(count);
  chosen.lengths.resize(count);
  chosen.tokens = std::accumulate(chosen.lengths.begin(), chosen.lengths.end(), int64_t{0});
  data.held_out_in_training = count_shared(*data.train, *data.held_out, chosen);
  return ok_status();
}

Result<RunData> resolve_data(const proto::Run& run, FileSystem& files, const ModelConfig& target) {
  RunData data;
  PERCHERON_ASSIGN_OR_RETURN(data.train, open_dataset(files, "data.train", run.data().train()));
  const int64_t vocabulary = data.train->passport().vocab_size;
  if (vocabulary > target.vocab_size) {
    return invalid_argument(fmt::format(
        "data.train was prepared with a tokenizer of {} ids, but {} has {} embedding rows: prepare "
        "it with the target's own tokenizer",
        vocabulary, run.target().path(), target.vocab_size));
  }
  const std::string data_name = fmt::format("data.train ({})", run.data().train(0));
  PERCHERON_ASSIGN_OR_RETURN(data.tokenizer_note,
                             check_tokenizer(files, run.target().path(),
                                             data.train->passport().tokenizer_hash, data_name));
  PERCHERON_ASSIGN_OR_RETURN(
      data.template_note,
      check_template(files, run.target().path(), data.train->passport().template_hash, data_name));
  PERCHERON_ASSIGN_OR_RETURN(data.options, resolve_plan_options(run));
  PERCHERON_ASSIGN_OR_RETURN(data.selection, select_samples(*data.train, data.options));
  PERCHERON_RETURN_IF_ERROR(resolve_buckets(data.selection, data.options));
  if (!run.data().held_out().empty()) {
    PERCHERON_RETURN_IF_ERROR(resolve_held_out(run, files, data));
  }
  return data;
}

// --- drafter -------------------------------------------------------------------------------------

// Says that `key`, where it was given, contradicts the file that settles it.
Status agree(const char* key, bool given, bool equal, const std::string& path) {
  if (!given || equal) return ok_status();
  return invalid_argument(fmt::format(
      "drafter.{} differs from what {} says, which decides the drafter's shape: leave it out", key,
      path));
}

// drafter.* beside a file that settles the shape: what is given must be what the file says. The
// head may be frozen either way.
Status apply_given(const proto::Drafter& given, const std::string& path, DrafterConfig& config) {
  const std::vector<int64_t> capture(given.capture().begin(), given.capture().end());
  const std::vector<int64_t>& windows = config.body.sliding_window;
  std::set<int64_t> sliding;
  bool same_window = true;
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    if (windows[layer] == 0) continue;
    sliding.insert(static_cast<int64_t>(layer));
    same_window = same_window && windows[layer] == given.sliding_window();
  }
  if (sliding.empty()) same_window = given.sliding_window() == 0;
  const bool same_layers =
      sliding == std::set<int64_t>(given.sliding_layers().begin(), given.sliding_layers().end());
  const Status checks[] = {
      agree("layers", given.has_layers(), given.layers() == config.body.num_hidden_layers, path),
      agree("capture", !capture.empty(), capture == config.capture, path),
      agree("draft_vocab_size", given.has_draft_vocab_size(),
            given.draft_vocab_size() == config.draft_vocab_size, path),
      agree("norm_before_residual", given.has_norm_before_residual(),
            given.norm_before_residual() == config.norm_before_residual, path),
      agree("norm_before_fc", given.has_norm_before_fc(),
            given.norm_before_fc() == config.norm_before_fc, path),
      agree("norm_output", given.has_norm_output(), given.norm_output() == config.norm_output,
            path),
      agree("block_size", given.has_block_size(), given.block_size() == config.block_size, path),
      agree("mask_token_id", given.has_mask_token_id(),
            given.mask_token_id() == config.mask_token_id, path),
      agree("sliding_window", given.has_sliding_window(), same_window, path),
      agree("sliding_layers", !given.sliding_layers().empty(), same_layers, path)};
  for (const Status& check : checks) PERCHERON_RETURN_IF_ERROR(check);
  config.freeze_head = given.freeze_head();
  return ok_status();
}

Result<DrafterConfig> resolve_drafter(const proto::Run& run, FileSystem& files,
                                      const ModelConfig& target, int64_t used_tokens) {
  const proto::Drafter& given = run.drafter();
  if (given.has_init_from() && !given.has_config()) {
    PERCHERON_ASSIGN_OR_RETURN(DrafterFile file, read_drafter(files, given.init_from(), &target));
    if (file.config.kind != drafter_kind(run)) {
      return invalid_argument(
          fmt::format("drafter.init_from {} holds a drafter of another kind "
                      "than drafter.kind",
                      given.init_from()));
    }
    PERCHERON_RETURN_IF_ERROR(apply_given(given, given.init_from(), file.config));
    return file.config;
  }
  DrafterChoice choice = drafter_choice(given);
  if (choice.kind == DrafterKind::kDflash) {
    std::optional<int64_t> wanted;
    if (given.has_mask_token_id()) wanted = given.mask_token_id();
    PERCHERON_ASSIGN_OR_RETURN(choice.mask_token_id,
                               resolve_mask_token(wanted, target, used_tokens));
  }
  if (!given.has_config()) {
    PERCHERON_ASSIGN_OR_RETURN(DrafterConfig config, derive_drafter_config(target, choice));
    if (config.capture.empty()) {
      config.capture =
          default_capture(config.kind, target.num_hidden_layers, config.body.num_hidden_layers);
      PERCHERON_RETURN_IF_ERROR(match_target(config, target, "drafter"));
    }
    return config;
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(given.config()));
  PERCHERON_ASSIGN_OR_RETURN(StatedDrafter stated, parse_drafter_config(text, given.config()));
  PERCHERON_RETURN_IF_ERROR(match_target(stated.config, target, given.config()));
  if (stated.config.kind != choice.kind) {
    return invalid_argument(
        fmt::format("drafter.config {} describes another kind than drafter.kind", given.config()));
  }
  PERCHERON_RETURN_IF_ERROR(apply_given(given, given.config(), stated.config));
  return stated.config;
}

Status resolve_vocabulary(const proto::Run& run, FileSystem& files, RunSetup& setup) {
  const TokenDataset& train = *setup.data.train;
  const std::vector<int64_t> counts = count_supervised_tokens(train, setup.target.vocab_size);
  const int64_t used = train.passport().vocab_size;
  if (setup.drafter.draft_vocab_size == setup.target.vocab_size) return ok_status();
  if (!run.drafter().has_draft_vocab_size() && !run.drafter().has_config() &&
      !run.drafter().has_init_from()) {
    setup.drafter.draft_vocab_size = std::min(setup.drafter.draft_vocab_size, used);
  }
  std::optional<DraftVocabulary> vocabulary;
  if (run.drafter().has_init_from()) {
    PERCHERON_ASSIGN_OR_RETURN(const DrafterFile file,
                               read_drafter(files, run.drafter().init_from(), &setup.target));
    PERCHERON_ASSIGN_OR_RETURN(vocabulary,
                               DraftVocabulary::read(file.file, setup.target.vocab_size));
    if (vocabulary->data_hash() != train.content_hash()) {
      setup.draft_vocabulary_note = fmt::format(
          "the draft vocabulary of drafter.init_from {}: it has {:.1f} % of the supervised tokens "
          "of "
          "data.train; leave drafter.init_from out to count it anew",
          vocabulary->data_hash().empty() ? "does not say on which data it was counted"
                                          : "was counted on other data",
          100 * vocabulary->coverage(counts));
    }
  } else {
    Result<DraftVocabulary> made = DraftVocabulary::most_frequent(
        counts, setup.drafter.draft_vocab_size, used, train.content_hash());
    if (!made.ok()) return made.status().with_context("drafter.draft_vocab_size");
    vocabulary = std::move(made).value();
  }
  setup.draft_ids.assign(vocabulary->target_ids().begin(), vocabulary->target_ids().end());
  setup.draft_coverage = vocabulary->coverage(counts);
  setup.draft_vocabulary_hash = vocabulary->hash();
  setup.draft_vocabulary_data = vocabulary->data_hash();
  if (setup.data.held_out) {
    setup.held_out_coverage = vocabulary->coverage(
        count_supervised_tokens(*setup.data.held_out, setup.target.vocab_size));
  }
  return ok_status();
}

// --- steps and memory ----------------------------------------------------------------------------

Status too_long(int64_t epochs, int64_t micro_batches) {
  return invalid_argument(fmt::format(
      "train.epochs and train.steps ask for more than {} epochs of {} micro-batches together; a "
      "run has at most {} epochs and some {} micro-batches: lower them",
      epochs, micro_batches, kEpochsMax, kMicroBatchesMax));
}

Status resolve_steps(const proto::Train& train, RunSetup& setup) {
  const int64_t per_step = train.micro_batches_per_step();
  std::vector<int64_t> micro_batches;
  int64_t steps = 0, planned = 0;
  for (int64_t epoch = 0;; ++epoch) {
    if (train.has_epochs() && epoch == train.epochs()) break;
    if (train.has_steps() && steps >= train.steps()) break;
    if (epoch == kEpochsMax || planned > kMicroBatchesMax) return too_long(epoch, planned);
    const EpochPlan plan = EpochPlan::make(setup.data.selection, setup.data.options, epoch);
    micro_batches.push_back(plan.micro_batches());
    planned += plan.micro_batches();
    steps += (plan.micro_batches() + per_step - 1) / per_step;
    for (int64_t first = 0; first < plan.micro_batches(); first += per_step) {
      uint64_t bytes = 0;
      const int64_t end = std::min(first + per_step, plan.micro_batches());
      for (int64_t i = first; i < end; ++i) {
        bytes += setup.features.bytes(plan.tokens(i), static_cast<int64_t>(plan.samples(i).size()));
        if (plan.tokens(i) <= setup.tokens_max) continue;
        setup.tokens_max = plan.tokens(i);
        setup.largest_micro_batch = {epoch, i};
      }
      setup.step_bytes_max = std::max(setup.step_bytes_max, bytes);
    }
  }
  setup.steps = StepPlan(per_step, std::move(micro_batches), train.has_steps() ? train.steps() : 0);
  if (setup.data.held_out) {
    const EpochPlan plan =
        EpochPlan::make(setup.data.held_out_selection, setup.data.held_out_options, 0);
    for (int64_t i = 0; i < plan.micro_batches(); ++i) {
      setup.tokens_max = std::max(setup.tokens_max, plan.tokens(i));
    }
  }
  return Credits::check_limit(setup.config.features().bytes_max(), setup.step_bytes_max);
}

FeatureShape feature_shape(const RunSetup& setup) {
  FeatureShape shape;
  shape.dtype =
      setup.config.features().dtype() == proto::Features::F32 ? DType::kF32 : DType::kBf16;
  shape.has_last = !setup.loss.hard_labels;
  shape.slots = static_cast<int64_t>(setup.drafter.capture.size()) + (shape.has_last ? 1 : 0);
  shape.hidden_size = setup.target.hidden_size;
  shape.has_top1 =
      !setup.loss.hard_labels && !setup.draft_ids.empty() && setup.loss.gate_on_draft_vocab;
  return shape;
}

// Held-out features stay in memory for the whole run, beside the store.
Status limit_held_out(RunSetup& setup) {
  if (!setup.data.held_out) return ok_status();
  SampleSelection& chosen = setup.data.held_out_selection;
  const uint64_t bytes_max = setup.config.evaluate().feature_bytes_max();
  uint64_t bytes = 0;
  size_t count = 0;
  while (count < chosen.samples.size()) {
    bytes += setup.features.bytes(chosen.lengths[count], 1);
    if (bytes > bytes_max) break;
    ++count;
  }
  if (count == 0) {
    return invalid_argument(
        fmt::format("evaluate.feature_bytes_max is {}: the features of the first held-out "
                    "conversation alone take {}",
                    bytes_max, bytes));
  }
  setup.data.held_out_left_out = static_cast<int64_t>(chosen.samples.size() - count);
  chosen.samples.resize(count);
  chosen.lengths.resize(count);
  chosen.tokens = std::accumulate(chosen.lengths.begin(), chosen.lengths.end(), int64_t{0});
  return ok_status();
}

Status resolve_draft_lengths(const proto::Evaluate& given, RunSetup& setup) {
  const bool eagle3 = setup.drafter.kind == DrafterKind::kEagle3;
  std::set<int64_t> lengths(given.draft_lengths().begin(), given.draft_lengths().end());
  if (lengths.empty()) lengths.insert(default_draft_length(setup.drafter));
  const int64_t most = eagle3 ? 64 : setup.drafter.block_size - 1;
  for (int64_t length : lengths) {
    if (length < 1 || length > most) {
      return invalid_argument(fmt::format(
          "evaluate.draft_lengths names {}: this drafter drafts from 1 to {} tokens a round",
          length, most));
    }
  }
  setup.draft_lengths.assign(lengths.begin(), lengths.end());
  return ok_status();
}

AttentionKernel attention_of(const proto::Target& target) {
  switch (target.attention()) {
    case proto::Target::OWN: break;
    case proto::Target::CUDNN: return AttentionKernel::kCudnn;
    case proto::Target::AUTO: return AttentionKernel::kFaster;
  }
  return AttentionKernel::kOwn;
}

Assignment assignment_of(const proto::Mailbox& mailbox) {
  switch (mailbox.assignment()) {
    case proto::Mailbox::STEALING: return Assignment::kStealing;
    case proto::Mailbox::FIXED: return Assignment::kFixed;
    case proto::Mailbox::ROUND_ROBIN: return Assignment::kRoundRobin;
    case proto::Mailbox::PER_TRAINER_QUEUE: return Assignment::kPerTrainerQueue;
  }
  return Assignment::kStealing;
}

WeightFormat weights_of(const proto::Target& target) {
  switch (target.weights()) {
    case proto::Target::FULL: break;
    case proto::Target::INT8: return WeightFormat::kInt8;
    case proto::Target::FP8: return WeightFormat::kFp8;
  }
  return WeightFormat::kFull;
}

}  // namespace

Result<std::shared_ptr<const RunSetup>> resolve_run(const proto::Run& run, FileSystem& files) {
  PERCHERON_RETURN_IF_ERROR(check_numbers(run));
  auto setup = std::make_shared<RunSetup>();
  setup->config = run;
  setup->target_dtype =
      run.target().compute_dtype() == proto::Target::F32 ? DType::kF32 : DType::kBf16;
  setup->target_weights = weights_of(run.target());
  setup->drafter_dtype =
      run.drafter().compute_dtype() == proto::Drafter::F32 ? DType::kF32 : DType::kBf16;
  setup->assignment = assignment_of(run.mailbox());
  PERCHERON_ASSIGN_OR_RETURN(setup->placement, resolve_placement(run.placement()));
  setup->placement.attention = attention_of(run.target());
  PERCHERON_ASSIGN_OR_RETURN(setup->target, read_model_config(files, run.target().path()));
  PERCHERON_RETURN_IF_ERROR(check_tensor_parallel(setup->target, setup->placement.tensor_parallel));
  PERCHERON_ASSIGN_OR_RETURN(setup->data, resolve_data(run, files, setup->target));
  PERCHERON_RETURN_IF_ERROR(check_offline_settings(run, setup->data.options, setup->target));
  PERCHERON_ASSIGN_OR_RETURN(
      setup->drafter,
      resolve_drafter(run, files, setup->target, setup->data.train->passport().vocab_size));
  PERCHERON_ASSIGN_OR_RETURN(setup->loss, resolve_loss(run, setup->drafter));
  PERCHERON_RETURN_IF_ERROR(resolve_vocabulary(run, files, *setup));
  setup->features = feature_shape(*setup);
  PERCHERON_RETURN_IF_ERROR(limit_held_out(*setup));
  PERCHERON_RETURN_IF_ERROR(resolve_steps(run.train(), *setup));
  PERCHERON_ASSIGN_OR_RETURN(setup->optimizer, resolve_optimizer(run));
  PERCHERON_ASSIGN_OR_RETURN(setup->schedule,
                             resolve_schedule(run.schedule(), setup->steps.steps()));
  PERCHERON_RETURN_IF_ERROR(resolve_draft_lengths(run.evaluate(), *setup));
  return std::shared_ptr<const RunSetup>(std::move(setup));
}

}  // namespace percheron

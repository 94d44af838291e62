#include "model/speculative.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/reference_drafter.h"
#include "tests/model/toy_drafter.h"

namespace percheron {
namespace {

constexpr uint64_t kSeed = 20260101;

DrafterChoice eagle3_choice() {
  DrafterChoice choice;
  choice.capture = {1, 2, 4};
  choice.draft_vocab_size = 60;
  return choice;
}

DrafterChoice dflash_choice(int64_t block_size = 6) {
  DrafterChoice choice;
  choice.kind = DrafterKind::kDflash;
  choice.layers = 2;
  choice.capture = {1, 3};
  choice.block_size = block_size;
  choice.mask_token_id = 96;
  return choice;
}

std::unique_ptr<Target> plain_target(TestDevice& device,
                                     const nlohmann::json& config = nlohmann::json::object()) {
  TargetOptions options;
  options.compute_dtype = DType::kF32;
  return load_target(device, make_toy_model(kSeed, config).write(fresh_directory("plain")),
                     options);
}

GenerateOptions limit(int64_t new_tokens_max) {
  GenerateOptions options;
  options.new_tokens_max = new_tokens_max;
  return options;
}

/// Compares what a source drafts with the reference, run from scratch each time. Passes it on with
/// its first tokens, a different number each round, replaced by those of `answer`, the target's
/// own: so rounds of every length follow one another.
class CheckedSource final : public DraftSource {
 public:
  CheckedSource(TestDevice& device, DraftSource& source, const ReferenceDrafter& reference,
                const DrafterConfig& config, std::vector<int32_t> prompt_and_answer)
      : device_(device),
        source_(source),
        reference_(reference),
        config_(config),
        answer_(std::move(prompt_and_answer)) {}

  void reset() override {
    source_.reset();
    states_.clear();
    next_.clear();
  }

  Result<std::vector<int32_t>> draft(Context& context, ConstTensorView features,
                                     std::span<const int32_t> next, int64_t count) override {
    const std::vector<float> values = device_.floats(features);
    const auto width = static_cast<size_t>(features.dim(1) * features.dim(2));
    for (size_t at = 0; at < values.size(); at += width) {
      states_.emplace_back(values.begin() + static_cast<int64_t>(at),
                           values.begin() + static_cast<int64_t>(at + width));
    }
    next_.insert(next_.end(), next.begin(), next.end());
    Result<std::vector<int32_t>> drafted = source_.draft(context, features, next, count);
    EXPECT_TRUE(drafted.ok()) << drafted.status().message();
    const std::vector<int32_t> wanted =
        config_.kind == DrafterKind::kEagle3
            ? reference_.eagle3(states_, next_, count)
            : reference_.dflash(states_, next.back(), std::min(config_.block_size, count + 1));
    EXPECT_EQ(*drafted, wanted) << "after " << states_.size() << " rows";
    ++calls;
    for (size_t i = 0; i < drafted->size() && i < static_cast<size_t>(calls % 4); ++i) {
      const size_t at = states_.size() + 1 + i;  // The bonus token stands at states_.size().
      if (at < answer_.size()) (*drafted)[i] = answer_[at];
    }
    return drafted;
  }

  int calls = 0;

 private:
  TestDevice& device_;
  DraftSource& source_;
  const ReferenceDrafter& reference_;
  const DrafterConfig& config_;
  std::vector<int32_t> answer_;
  ReferenceDrafter::Rows states_;
  std::vector<int32_t> next_;
};

struct Variant {
  std::string name;
  DrafterChoice choice;
  bool warm = false;
  nlohmann::json target = nlohmann::json::object();
};

std::vector<Variant> variants() {
  std::vector<Variant> all = {{"eagle3", eagle3_choice()}, {"eagle3_warm", eagle3_choice(), true}};
  Variant fed_back{"eagle3_1", eagle3_choice()};
  fed_back.choice.norm_output = fed_back.choice.norm_before_fc =
      fed_back.choice.norm_before_residual = true;
  all.push_back(fed_back);
  Variant normed{"eagle3_fc_norm_whole_vocabulary", eagle3_choice()};
  normed.choice.fc_norm = true;
  normed.choice.draft_vocab_size = 97;
  all.push_back(normed);
  all.push_back({"dflash", dflash_choice()});
  all.push_back({"dflash_warm", dflash_choice(), true});
  Variant sliding{"dflash_sliding", dflash_choice(4)};
  sliding.choice.sliding_window = 5;
  sliding.choice.sliding_layers = {1};
  sliding.choice.draft_vocab_size = 50;
  all.push_back(sliding);
  // head_dim is not hidden_size / heads: EAGLE#223, speculators#134.
  all.push_back({"eagle3_wide_heads", eagle3_choice(), false, {{"head_dim", 12}}});
  all.push_back(
      {"dflash_qwen3", dflash_choice(), true, {{"model_type", "qwen3"}, {"head_dim", 12}}});
  return all;
}

class Speculative : public testing::TestWithParam<Variant> {
 protected:
  ToyPair make_pair() {
    constexpr std::array<WarmStart, 3> kAll = {WarmStart::kHead, WarmStart::kFc, WarmStart::kLayer};
    const std::span<const WarmStart> warm =
        GetParam().warm ? std::span(kAll) : std::span(kAll).first(0);
    return make_toy_pair(device_, kSeed, GetParam().choice, warm, GetParam().target);
  }

  TestDevice device_;
};

// The rule of the loop: whatever is drafted, the output is the target's own, token for token; and
// what is drafted is what the drafter says when it is run from scratch.
TEST_P(Speculative, DecodingEqualsPlainDecodingAndDraftsEqualTheReference) {
  const ToyPair pair = make_pair();
  const ReferenceDrafter reference(device_, *pair.drafter, *pair.target);
  Context& context = device_.context();
  for (const int64_t draft_length : {1, 3, 7}) {
    const std::vector<int32_t> prompt = random_tokens(kSeed + 7, 9, 97);
    const auto source = make_draft_source(context, *pair.drafter, 60).value();
    const auto plain = decode(context, *pair.target, nullptr, prompt, limit(30), 0);
    ASSERT_TRUE(plain.ok()) << plain.status().message();
    std::vector<int32_t> answer = prompt;
    answer.insert(answer.end(), plain->tokens.begin(), plain->tokens.end());
    CheckedSource checked(device_, *source, reference, pair.drafter->config(), answer);
    const auto drafted = decode(context, *pair.target, &checked, prompt, limit(30), draft_length);
    ASSERT_TRUE(drafted.ok()) << drafted.status().message();
    EXPECT_EQ(drafted->tokens, plain->tokens) << draft_length;
    EXPECT_EQ(checked.calls, static_cast<int>(drafted->rounds.size()));
    int64_t committed = 1;
    for (const Round& round : drafted->rounds) committed += round.accepted + 1;
    EXPECT_GE(committed, 30);
    EXPECT_LT(drafted->rounds.size(), 22u);
    EXPECT_EQ(drafted->target_calls, 1 + static_cast<int64_t>(drafted->rounds.size()));
    EXPECT_EQ(plain->target_calls, 30);
  }
}

Features features_of(Context& context, Target& target,
                     const std::vector<std::pair<std::vector<int32_t>, size_t>>& documents) {
  MicroBatch batch;
  batch.offsets.push_back(0);
  for (const auto& [tokens, prompt] : documents) {
    batch.token_ids.insert(batch.token_ids.end(), tokens.begin(), tokens.end());
    for (size_t i = 0; i < tokens.size(); ++i) batch.loss_mask.push_back(i >= prompt ? 1 : 0);
    batch.offsets.push_back(static_cast<int32_t>(batch.token_ids.size()));
    batch.sample_ids.push_back(batch.sample_ids.size());
  }
  const Result<Features> features =
      capture_features(context, target, batch, DType::kF32, Top1::kNo);
  EXPECT_TRUE(features.ok()) << features.status().message();
  return *features;
}

// A prompt with the target's own greedy answer.
std::vector<int32_t> answered(Context& context, Target& target, const std::vector<int32_t>& prompt,
                              int64_t length) {
  const auto plain = decode(context, target, nullptr, prompt, limit(length), 0).value();
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), plain.tokens.begin(), plain.tokens.end());
  return tokens;
}

// SpecForge#471, SpecForge#472, each kind's own alignment: an EAGLE-3 row embeds the next token and
// drafts the one after it, a DFlash slot drafts its own position.
TEST_P(Speculative, DraftingFromAllPositionsAtOnceEqualsTheReference) {
  const ToyPair pair = make_pair();
  const ReferenceDrafter reference(device_, *pair.drafter, *pair.target);
  Context& context = device_.context();
  constexpr int64_t kDrafts = 4;
  const bool eagle3 = pair.drafter->config().kind == DrafterKind::kEagle3;
  std::vector<std::pair<std::vector<int32_t>, size_t>> documents;
  for (const size_t length : {5, 1, 8}) {
    const std::vector<int32_t> prompt =
        random_tokens(kSeed + length, static_cast<int64_t>(length), 97);
    documents.emplace_back(answered(context, *pair.target, prompt, 9), prompt.size());
  }
  const Features features = features_of(context, *pair.target, documents);
  const std::vector<int32_t> accepted =
      accepted_at_every_position(context, *pair.drafter, features, kDrafts).value();
  ASSERT_EQ(accepted.size(), features.batch.token_ids.size());
  const auto* states = features.hidden_view().as<float>();
  const auto width = features.slots * features.hidden_size;
  size_t row = 0;
  for (const auto& [tokens, prompt] : documents) {
    const size_t first = row;
    for (size_t bonus = 1; bonus <= tokens.size(); ++bonus, ++row) {
      int32_t wanted = 0;
      if (bonus < tokens.size() && bonus >= prompt) {
        ReferenceDrafter::Rows rows;
        for (size_t i = first; i < first + bonus; ++i) {
          const float* state = states + static_cast<int64_t>(i) * width;
          rows.emplace_back(state, state + width);
        }
        const std::vector<int32_t> next(tokens.begin() + 1,
                                        tokens.begin() + static_cast<int64_t>(bonus) + 1);
        const int64_t size = std::min(pair.drafter->config().block_size, kDrafts + 1);
        const std::vector<int32_t> drafted = eagle3 ? reference.eagle3(rows, next, kDrafts)
                                                    : reference.dflash(rows, tokens[bonus], size);
        for (const int32_t token : drafted) {
          const size_t at = bonus + 1 + static_cast<size_t>(wanted);
          if (at >= tokens.size() || tokens[at] != token) break;
          ++wanted;
        }
      }
      EXPECT_EQ(accepted[row], wanted) << "row " << row;
    }
  }
}

// The walk over stored answers and the real loop count the same rounds.
TEST_P(Speculative, WalkingAStoredAnswerCountsTheRoundsOfTheRealLoop) {
  const ToyPair pair = make_pair();
  Context& context = device_.context();
  const std::vector<int64_t> limits = {
      std::min<int64_t>(5, pair.drafter->config().kind == DrafterKind::kEagle3
                               ? 5
                               : pair.drafter->config().block_size - 1)};
  for (uint64_t i = 0; i < 3; ++i) {
    const std::vector<int32_t> prompt = random_tokens(kSeed + 31 * i, 6, 97);
    const std::vector<int32_t> tokens = answered(context, *pair.target, prompt, 25);
    const Features features = features_of(context, *pair.target, {{tokens, prompt.size()}});
    const std::vector<int32_t> accepted =
        accepted_at_every_position(context, *pair.drafter, features, limits[0]).value();
    const WalkCounts walked = walk_answer(accepted, features.batch.loss_mask, limits);
    const auto source = make_draft_source(context, *pair.drafter, 60).value();
    const auto real =
        decode(context, *pair.target, source.get(), prompt, limit(25), limits[0]).value();
    EXPECT_EQ(walked.rounds[0], static_cast<int64_t>(real.rounds.size()));
    EXPECT_EQ(walked.tokens[0], 24);
  }
}

// The same source serves one sequence after another, and forgets the earlier.
TEST_P(Speculative, ResettingASourceForgetsItsSequence) {
  const ToyPair pair = make_pair();
  Context& context = device_.context();
  const auto source = make_draft_source(context, *pair.drafter, 60).value();
  const auto fresh = make_draft_source(context, *pair.drafter, 60).value();
  const std::vector<int32_t> first = random_tokens(1, 20, 97), second = random_tokens(2, 5, 97);
  ASSERT_TRUE(decode(context, *pair.target, source.get(), first, limit(20), 3).ok());
  const auto again = decode(context, *pair.target, source.get(), second, limit(20), 3).value();
  const auto alone = decode(context, *pair.target, fresh.get(), second, limit(20), 3).value();
  ASSERT_EQ(again.rounds.size(), alone.rounds.size());
  for (size_t i = 0; i < again.rounds.size(); ++i) {
    EXPECT_EQ(again.rounds[i].accepted, alone.rounds[i].accepted);
  }
}

INSTANTIATE_TEST_SUITE_P(Drafters, Speculative, testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

/// Drafts what it is told, whatever the target thinks.
class ScriptedSource final : public DraftSource {
 public:
  explicit ScriptedSource(std::vector<int32_t> answer) : answer_(std::move(answer)) {}
  void reset() override { known_ = 0; }
  Result<std::vector<int32_t>> draft(Context&, ConstTensorView, std::span<const int32_t> next,
                                     int64_t count) override {
    known_ += known_ == 0 ? 1 : static_cast<int64_t>(next.size());
    std::vector<int32_t> drafted;
    for (int64_t i = 0; i < count; ++i) {
      drafted.push_back(answer_[static_cast<size_t>(known_ + i) % answer_.size()]);
    }
    return drafted;
  }

 private:
  std::vector<int32_t> answer_;
  int64_t known_ = 0;
};

class PlainTarget : public testing::Test {
 protected:
  PlainTarget() : target_(plain_target(device_)) {}
  TestDevice device_;
  std::unique_ptr<Target> target_;
};

TEST_F(PlainTarget, AcceptsAllDraftsThatAreItsOwnTokens) {
  Context& context = device_.context();
  const std::vector<int32_t> prompt = random_tokens(5, 7, 97);
  const auto plain = decode(context, *target_, nullptr, prompt, limit(40), 0).value();
  ScriptedSource source(plain.tokens);
  const auto drafted = decode(context, *target_, &source, prompt, limit(21), 4).value();
  EXPECT_EQ(drafted.tokens, std::vector<int32_t>(plain.tokens.begin(), plain.tokens.begin() + 21));
  EXPECT_EQ(drafted.rounds.size(), 4u);
  for (const Round& round : drafted.rounds) EXPECT_EQ(round.accepted, 4);
  EXPECT_EQ(drafted.target_calls, 5);
}

TEST_F(PlainTarget, StopsAtAStopTokenInTheMiddleOfARound) {
  Context& context = device_.context();
  const std::vector<int32_t> prompt = random_tokens(5, 7, 97);
  const auto plain = decode(context, *target_, nullptr, prompt, limit(40), 0).value();
  GenerateOptions options = limit(40);
  options.stop_token_ids = {plain.tokens[7]};
  const auto stop = std::find(plain.tokens.begin(), plain.tokens.end(), plain.tokens[7]);
  const std::vector<int32_t> wanted(plain.tokens.begin(), stop + 1);
  ScriptedSource source(plain.tokens);
  for (DraftSource* draft :
       {static_cast<DraftSource*>(nullptr), static_cast<DraftSource*>(&source)}) {
    const auto result = decode(context, *target_, draft, prompt, options, 4).value();
    EXPECT_EQ(result.tokens, wanted);
    EXPECT_TRUE(result.stopped);
  }
}

TEST_F(PlainTarget, SaysWhatIsWrongWithARequest) {
  Context& context = device_.context();
  const std::vector<int32_t> good = {1, 2}, bad = {1, 97}, none;
  EXPECT_FALSE(decode(context, *target_, nullptr, none, limit(5), 0).ok());
  EXPECT_NE(decode(context, *target_, nullptr, bad, limit(5), 0).status().message().find("97"),
            std::string::npos);
  EXPECT_FALSE(decode(context, *target_, nullptr, good, limit(0), 0).ok());
  EXPECT_FALSE(decode(context, *target_, nullptr, good, limit(5), -1).ok());
  GenerateOptions options = limit(5);
  options.temperature = std::nan("");
  EXPECT_FALSE(decode(context, *target_, nullptr, good, options, 0).ok());
}

TEST_F(PlainTarget, SamplesAsGenerateDoesWithoutDrafts) {
  Context& context = device_.context();
  const std::vector<std::vector<int32_t>> prompts = {random_tokens(5, 7, 97)};
  GenerateOptions options = limit(30);
  options.temperature = 0.8;
  options.seed = 3;
  const auto generated = generate(context, *target_, prompts, options).value();
  const auto decoded = decode(context, *target_, nullptr, prompts[0], options, 0).value();
  EXPECT_EQ(decoded.tokens, generated[0].tokens);
}

// Leviathan et al. 2023: the output's distribution is the target's, whatever is drafted.
TEST(SpeculativeSampling, KeepsTheTargetsDistribution) {
  TestDevice device(1);
  Context& context = device.context();
  const nlohmann::json small = {{"vocab_size", 5},          {"num_hidden_layers", 1},
                                {"hidden_size", 16},        {"intermediate_size", 16},
                                {"num_attention_heads", 2}, {"num_key_value_heads", 1}};
  const auto target = plain_target(device, small);
  const std::vector<int32_t> prompt = {1, 4, 2};
  constexpr int kRuns = 3000, kTokens = 4;
  // Counts of the last two tokens, drafts of "3, 1, 0, ..." accepted or not before them.
  std::vector<double> plain(25, 0), drafted(25, 0);
  ScriptedSource source({3, 1, 0, 2, 4});
  for (int run = 0; run < kRuns; ++run) {
    GenerateOptions options = limit(kTokens);
    options.temperature = 1.0;
    options.seed = static_cast<uint64_t>(run);
    const auto a = decode(context, *target, nullptr, prompt, options, 0).value();
    options.seed = static_cast<uint64_t>(run + kRuns);
    const auto b = decode(context, *target, &source, prompt, options, 2).value();
    plain[static_cast<size_t>(a.tokens[2] * 5 + a.tokens[3])] += 1.0 / kRuns;
    drafted[static_cast<size_t>(b.tokens[2] * 5 + b.tokens[3])] += 1.0 / kRuns;
  }
  // Two multinomials of 3000: each share differs by less than 5 standard deviations.
  for (size_t i = 0; i < plain.size(); ++i) {
    const double p = (plain[i] + drafted[i]) / 2;
    EXPECT_NEAR(plain[i], drafted[i], 5 * std::sqrt(2 * p * (1 - p) / kRuns) + 1e-3) << i;
  }
}

TEST(DraftSource, SaysWhatTheTargetMustCapture) {
  TestDevice device;
  const ToyPair pair = make_toy_pair(device, kSeed, eagle3_choice());
  const auto plain = plain_target(device);
  Context& context = device.context();
  const auto source = make_draft_source(context, *pair.drafter, 60).value();
  const std::vector<int32_t> prompt = {1, 2, 3};
  const auto result = decode(context, *plain, source.get(), prompt, limit(5), 3);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("3 captured states of 32"), std::string::npos);
}

TEST(DraftSource, RefusesASequenceBeyondItsLimit) {
  TestDevice device;
  Context& context = device.context();
  for (const DrafterChoice& choice : {eagle3_choice(), dflash_choice()}) {
    const ToyPair pair = make_toy_pair(device, kSeed, choice);
    const auto source = make_draft_source(context, *pair.drafter, 8).value();
    const std::vector<int32_t> prompt = random_tokens(5, 7, 97);
    const auto result = decode(context, *pair.target, source.get(), prompt, limit(20), 3);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(result.status().message().find("limit of 8"), std::string::npos);
  }
}

std::vector<int32_t> looked_up(const std::vector<int32_t>& prompt, int32_t first, int64_t count) {
  const auto source = make_prompt_lookup(prompt);
  source->reset();
  std::vector<int32_t> next(prompt.begin() + 1, prompt.end());
  next.push_back(first);
  TestDevice device(1);
  return source->draft(device.context(), {}, next, count).value();
}

TEST(PromptLookup, ContinuesTheLatestOccurrenceOfTheLongestEnding) {
  // "1 2 3" occurs once, "2 3" twice, "3" three times: the longest wins, not the latest.
  EXPECT_EQ(looked_up({1, 2, 3, 9, 2, 3, 8, 3, 7, 1, 2}, 3, 2), (std::vector<int32_t>{9, 2}));
  EXPECT_EQ(looked_up({5, 2, 3, 9, 4, 2, 3, 8, 2}, 3, 3), (std::vector<int32_t>{8, 2, 3}));
  EXPECT_EQ(looked_up({5, 6, 7}, 8, 3), (std::vector<int32_t>{}));
  EXPECT_EQ(looked_up({5}, 5, 3), (std::vector<int32_t>{5}));
}

TEST(PromptLookup, LooksIntoTheAnswerToo) {
  TestDevice device(1);
  const std::vector<int32_t> prompt = {1, 2};
  const auto source = make_prompt_lookup(prompt);
  for (int run = 0; run < 2; ++run) {
    source->reset();
    EXPECT_TRUE(source->draft(device.context(), {}, std::vector<int32_t>{2, 7}, 3)->empty());
    EXPECT_TRUE(source->draft(device.context(), {}, std::vector<int32_t>{8}, 3)->empty());
    EXPECT_EQ(*source->draft(device.context(), {}, std::vector<int32_t>{7}, 3),
              (std::vector<int32_t>{8, 7}));
  }
}

TEST(PromptLookup, NeverChangesTheOutput) {
  TestDevice device;
  const auto target = plain_target(device);
  Context& context = device.context();
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const std::vector<int32_t> prompt = random_tokens(seed, 8, 97);
    const auto source = make_prompt_lookup(prompt);
    const auto plain = decode(context, *target, nullptr, prompt, limit(60), 0).value();
    const auto drafted = decode(context, *target, source.get(), prompt, limit(60), 4).value();
    EXPECT_EQ(drafted.tokens, plain.tokens);
  }
}

TEST(WalkAnswer, CommitsTheAcceptedDraftsAndTheBonusTokenEachRound) {
  // Prompt rows 0..2, answer rows 3..9; the bonus token starts at row 3.
  const std::vector<uint8_t> mask = {0, 0, 0, 1, 1, 1, 1, 1, 1, 1};
  const std::vector<int32_t> accepted = {0, 0, 3, 9, 9, 0, 0, 9, 9, 0};
  const std::vector<int64_t> limits = {1, 2, 7};
  const WalkCounts counts = walk_answer(accepted, mask, limits);
  // Limit 2: 3 -> 6 (2 + 1), 6 -> 7, 7 -> 8 (0 + 1), 8 -> 9 (cut at the end).
  EXPECT_EQ(counts.rounds, (std::vector<int64_t>{4, 4, 3}));
  EXPECT_EQ(counts.tokens, (std::vector<int64_t>{6, 6, 6}));
}

TEST(WalkAnswer, TakesEveryTurnAndSkipsOnesWithoutARound) {
  const std::vector<uint8_t> mask = {1, 1, 0, 1, 0, 1, 1, 1};
  const std::vector<int32_t> accepted(8, 0);
  const std::vector<int64_t> limits = {3};
  const WalkCounts counts = walk_answer(accepted, mask, limits);
  EXPECT_EQ(counts.rounds[0], 2);
  EXPECT_EQ(counts.tokens[0], 2);
  WalkCounts sum = counts;
  sum.add(counts);
  EXPECT_EQ(sum.rounds[0], 4);
}

}  // namespace
}  // namespace percheron

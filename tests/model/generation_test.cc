#include "model/generation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>

#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

Prompts prompts_of_many_lengths() {
  Prompts prompts;
  for (const int64_t length : {3, 1, 40, 12, 7, 2, 25, 5, 9}) {
    prompts.push_back(random_tokens(static_cast<uint64_t>(length), length, 97));
  }
  return prompts;
}

std::vector<Generated> generate_ok(TestDevice& device, Target& target, const Prompts& prompts,
                                   const GenerateOptions& options) {
  const Result<std::vector<Generated>> result =
      generate(device.context(), target, prompts, options);
  PERCHERON_CHECK(result.ok(), result.status().message());
  return *result;
}

TEST(Generation, ABatchGivesWhatEachPromptGivesAlone) {
  TestDevice device;
  const auto target =
      load_target(device, make_toy_model(4, {{"model_type", "mistral"}, {"sliding_window", 6}})
                              .write(fresh_directory("model")));
  const Prompts prompts = prompts_of_many_lengths();
  GenerateOptions options;
  options.new_tokens_max = 20;
  options.stop_token_ids = {11, 13, 17, 40, 41, 42};
  options.slots = 1;
  const std::vector<Generated> alone = generate_ok(device, *target, prompts, options);
  for (const int64_t slots : {2, 4, 64}) {
    options.slots = slots;
    const std::vector<Generated> batch = generate_ok(device, *target, prompts, options);
    ASSERT_EQ(batch.size(), prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(batch[i].tokens, alone[i].tokens) << "prompt " << i << ", slots " << slots;
      EXPECT_EQ(batch[i].stopped, alone[i].stopped);
    }
  }
}

TEST(Generation, SamplesDependOnSeedPromptAndPositionOnly) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  const Prompts prompts = prompts_of_many_lengths();
  GenerateOptions options;
  options.new_tokens_max = 12;
  options.temperature = 1.5;
  options.seed = 3;
  options.slots = 2;
  const std::vector<Generated> few = generate_ok(device, *target, prompts, options);
  options.slots = 64;
  const std::vector<Generated> many = generate_ok(device, *target, prompts, options);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(few[i].tokens, many[i].tokens) << i;
  options.seed = 4;
  EXPECT_NE(generate_ok(device, *target, prompts, options)[2].tokens, many[2].tokens);
}

TEST(Generation, TheStopTokenIsKeptAndTheLimitIsNoStop) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  const Prompts prompts = {random_tokens(1, 6, 97)};
  GenerateOptions options;
  options.new_tokens_max = 9;
  const std::vector<int32_t> all = generate_ok(device, *target, prompts, options)[0].tokens;
  ASSERT_EQ(all.size(), 9u);
  options.stop_token_ids = {all[4]};
  const Generated cut = generate_ok(device, *target, prompts, options)[0];
  const auto first = std::find(all.begin(), all.end(), all[4]);
  EXPECT_TRUE(cut.stopped);
  EXPECT_EQ(cut.tokens, std::vector<int32_t>(all.begin(), first + 1));
}

TEST(Generation, APromptLongerThanOnePassIsPrefilledInPieces) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  const std::vector<int32_t> prompt = random_tokens(1, 2500, 97);
  GenerateOptions options;
  options.new_tokens_max = 1;
  const auto generated =
      generate_ok(device, *target, {random_tokens(2, 1500, 97), prompt}, options);
  Context& context = device.context();
  Arena::Scope scope(context.arena);
  const TensorView last = context.arena.take(DType::kF32, {2500, 32});
  const TensorView id = context.arena.take(DType::kI32, {1});
  ASSERT_TRUE(target->forward(context, {prompt, {0, 2500}, {}}, nullptr, {}, last).ok());
  target->top1(context, last.rows(2499, 2500), id);
  EXPECT_EQ(generated[1].tokens, device.integers(id));
}

/// Gives prompts one at a time, the next one of a chain only when its predecessor is answered, as
/// the turns of a conversation are.
class ChainClient : public GenerationClient {
 public:
  explicit ChainClient(const Prompts& prompts, size_t chains) : prompts_(prompts) {
    for (size_t i = 0; i < chains; ++i) waiting_.push_back(i);
    chains_ = chains;
  }

  std::optional<GenerationRequest> next(Wait wait) override {
    if (wait == Wait::kYes) ++waits_;
    if (waiting_.empty()) return std::nullopt;
    const size_t index = waiting_.front();
    waiting_.pop_front();
    most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
    return GenerationRequest{index, index, prompts_[index]};
  }
  void answered(uint64_t id, Generated answer) override {
    answers[id] = std::move(answer);
    go_on(id);
  }
  void refused(uint64_t id, const Status& why) override {
    refusals[id] = why.code();
    go_on(id);
  }
  bool cancelled() const override { return answers.size() >= cancel_after; }

  std::map<uint64_t, Generated> answers;
  std::map<uint64_t, StatusCode> refusals;
  size_t cancel_after = std::numeric_limits<size_t>::max();
  size_t waits() const { return waits_; }
  size_t most_in_flight() const { return most_in_flight_; }

 private:
  void go_on(uint64_t id) {
    --in_flight_;
    if (id + chains_ < prompts_.size()) waiting_.push_back(id + chains_);
  }

  const Prompts& prompts_;
  std::deque<size_t> waiting_;
  size_t chains_ = 0, waits_ = 0, in_flight_ = 0, most_in_flight_ = 0;
};

TEST(Generation, PromptsThatComeOneAfterTheOtherGiveWhatTheirListGives) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  const Prompts prompts = prompts_of_many_lengths();
  for (const double temperature : {0.0, 1.5}) {
    GenerateOptions options;
    options.new_tokens_max = 20;
    options.stop_token_ids = {11, 13, 17, 40, 41, 42};
    options.temperature = temperature;
    const std::vector<Generated> expected = generate_ok(device, *target, prompts, options);
    for (const auto& [chains, slots] : {std::pair{1, 4}, {3, 2}, {3, 3}, {4, 64}}) {
      options.slots = slots;
      options.cache_begin = 1;  // The cache grows again and again, with sequences in it.
      ChainClient client(prompts, static_cast<size_t>(chains));
      ASSERT_TRUE(generate(device.context(), *target, client, options).ok());
      ASSERT_EQ(client.answers.size(), prompts.size());
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(client.answers[i].tokens, expected[i].tokens) << i << ", " << chains << " chains";
        EXPECT_EQ(client.answers[i].stopped, expected[i].stopped);
      }
      EXPECT_EQ(client.most_in_flight(), static_cast<size_t>(std::min(chains, slots)));
      // Only the first and the last question, and those of a chain that is alone, found no work.
      EXPECT_LE(client.waits(), chains == 1 ? prompts.size() + 1 : 4);
    }
  }
}

TEST(Generation, APromptThatCannotBeAnsweredIsRefusedAlone) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  const Prompts prompts = {{1, 2}, {}, {97}, {-1}, random_tokens(1, 10, 97), {3, 4}};
  GenerateOptions options;
  options.new_tokens_max = 9;
  options.context_max = 10;
  ChainClient client(prompts, 2);
  ASSERT_TRUE(generate(device.context(), *target, client, options).ok());
  EXPECT_EQ(client.refusals, (std::map<uint64_t, StatusCode>{{1, StatusCode::kInvalidArgument},
                                                             {2, StatusCode::kInvalidArgument},
                                                             {3, StatusCode::kInvalidArgument},
                                                             {4, StatusCode::kResourceExhausted}}));
  ASSERT_EQ(client.answers.size(), 2u);
  EXPECT_EQ(client.answers[0].tokens.size(), 8u) << "prompt and answer fill the context";
  EXPECT_FALSE(client.answers[0].stopped);
}

TEST(Generation, ACancelledClientGetsNoMoreAnswers) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  const Prompts prompts = prompts_of_many_lengths();
  GenerateOptions options;
  options.new_tokens_max = 5;
  options.slots = 2;
  ChainClient client(prompts, 9);
  client.cancel_after = 3;
  EXPECT_EQ(generate(device.context(), *target, client, options).code(), StatusCode::kCancelled);
  EXPECT_LE(client.answers.size(), 4u);
}

TEST(KvCache, GrowsWithWhatItHolds) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  Context& context = device.context();
  const std::vector<int32_t> tokens = random_tokens(5, 12, 97);
  const std::vector<int32_t> other = random_tokens(6, 7, 97);
  const auto last_of = [&](KvCache& cache, std::vector<int32_t> ids, int32_t slot) {
    Arena::Scope scope(context.arena);
    const auto count = static_cast<int32_t>(ids.size());
    const TensorView last = context.arena.take(DType::kF32, {count, 32});
    EXPECT_TRUE(
        target->forward(context, {std::move(ids), {0, count}, {slot}}, &cache, {}, last).ok());
    return device.floats(last.rows(count - 1, count));
  };
  const auto run = [&](int64_t length, int64_t grown) {
    auto cache = KvCache::make(context.device, target->config(), 2, length, DType::kF32).value();
    last_of(*cache, {tokens.begin(), tokens.begin() + 8}, 0);
    last_of(*cache, other, 1);
    if (grown > length) {
      EXPECT_TRUE(cache->grow(context, grown).ok());
    }
    EXPECT_EQ(cache->length(), std::max(length, grown));
    auto states = last_of(*cache, {tokens.begin() + 8, tokens.end()}, 0);
    const auto beside = last_of(*cache, {5}, 1);
    states.insert(states.end(), beside.begin(), beside.end());
    return states;
  };
  EXPECT_EQ(run(8, 30), run(30, 0));
}

TEST(Generation, ProgressAddsUpToAllNewTokens) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  GenerateOptions options;
  options.new_tokens_max = 5;
  options.slots = 3;
  int64_t reported = 0;
  const auto result = generate(device.context(), *target, prompts_of_many_lengths(), options,
                               [&](int64_t count) { reported += count; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(reported, 9 * 5);
  EXPECT_TRUE(generate(device.context(), *target, {}, options)->empty());
}

TEST(Generation, BadInputIsRefused) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  const auto code = [&](const Prompts& prompts, const GenerateOptions& options) {
    return generate(device.context(), *target, prompts, options).status().code();
  };
  GenerateOptions options;
  EXPECT_EQ(code({{1}, {}}, options), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{97}}, options), StatusCode::kInvalidArgument);
  for (const int64_t tokens :
       {int64_t{0}, kNewTokensMax + 1, std::numeric_limits<int64_t>::max()}) {
    options.new_tokens_max = tokens;
    EXPECT_EQ(code({{1}}, options), StatusCode::kInvalidArgument) << tokens;
  }
  options = {};
  options.temperature = NAN;
  EXPECT_EQ(code({{1}}, options), StatusCode::kInvalidArgument);
  options = {};
  options.slots = 0;
  EXPECT_EQ(code({{1}}, options), StatusCode::kInvalidArgument);
}

TEST(PickToken, GreedyTakesTheLowestOfTheLargest) {
  EXPECT_EQ(pick_token(std::vector<float>{1, 3, 3, 2}, 0, 0.9), 1);
}

TEST(PickToken, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), -INFINITY, std::log(5.0f)};
  EXPECT_EQ(pick_token(logits, 1.0, 0.0), 0);
  EXPECT_EQ(pick_token(logits, 1.0, 0.124), 0);
  EXPECT_EQ(pick_token(logits, 1.0, 0.126), 1);
  EXPECT_EQ(pick_token(logits, 1.0, 0.374), 1);
  EXPECT_EQ(pick_token(logits, 1.0, 0.376), 3);
  EXPECT_EQ(pick_token(logits, 1.0, 0.999999999), 3);
}

}  // namespace
}  // namespace percheron

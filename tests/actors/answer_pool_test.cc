#include "actors/answer_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>

#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using ::testing::HasSubstr;
using Wait = GenerationClient::Wait;

GenerationRequest request(uint64_t id) { return {id, id, {1, 2, 3}}; }

TEST(RequestQueue, GivesEachRequestOnceInTheOrderOfTheirComing) {
  RequestQueue queue(1);
  for (uint64_t id = 0; id < 5; ++id) ASSERT_TRUE(queue.push(request(id)).ok());
  for (uint64_t id = 0; id < 5; ++id) EXPECT_EQ(queue.take(0, Wait::kNo)->id, id);
  EXPECT_FALSE(queue.take(0, Wait::kNo).has_value());
}

TEST(RequestQueue, LeavesAShortQueuesShareToTheOtherDevices) {
  RequestQueue queue(2);
  for (uint64_t id = 0; id < 5; ++id) ASSERT_TRUE(queue.push(request(id)).ok());
  size_t first = 0;
  while (queue.take(0, Wait::kNo)) ++first;
  size_t second = 0;
  while (queue.take(1, Wait::kNo)) ++second;
  EXPECT_EQ(first, 3u);
  EXPECT_EQ(second, 2u);
  // With as many in flight as the other, a device takes what comes.
  queue.done(0);
  ASSERT_TRUE(queue.push(request(5)).ok());
  EXPECT_TRUE(queue.take(1, Wait::kNo).has_value());
}

TEST(RequestQueue, WhoWaitsIsWokenByARequestAndByTheEnd) {
  RequestQueue queue(1);
  std::optional<GenerationRequest> taken, last;
  std::thread taker([&] {
    taken = queue.take(0, Wait::kYes);
    queue.done(0);
    last = queue.take(0, Wait::kYes);
  });
  ASSERT_TRUE(queue.push(request(7)).ok());
  queue.close();
  taker.join();
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->id, 7u);
  EXPECT_FALSE(last.has_value());
}

TEST(RequestQueue, CancelDropsWhatWaits) {
  RequestQueue queue(1);
  ASSERT_TRUE(queue.push(request(7)).ok());
  queue.cancel();
  EXPECT_TRUE(queue.cancelled());
  EXPECT_FALSE(queue.take(0, Wait::kYes).has_value());
}

class Receiver : public AnswerReceiver {
 public:
  void answered(uint64_t id, Generated answer) override {
    EXPECT_TRUE(answers.emplace(id, std::move(answer)).second) << "answered twice: " << id;
  }
  void refused(uint64_t id, const Status& why) override { refusals[id] = why.message(); }
  void failed(const Status& error) override { failures.push_back(error.message()); }

  std::map<uint64_t, Generated> answers;
  std::map<uint64_t, std::string> refusals;
  std::vector<std::string> failures;
};

AnswerPoolOptions toy_pool(const std::string& name, std::vector<DeviceId> devices) {
  AnswerPoolOptions options;
  options.target = make_toy_model(4).write(fresh_directory(name));
  options.devices = std::move(devices);
  options.threads = 1;
  options.dtype = DType::kF32;
  options.generate.new_tokens_max = 12;
  options.generate.temperature = 1.0;
  options.generate.slots = 3;
  options.generate.stop_token_ids = {11, 13, 17};
  return options;
}

constexpr DeviceId kFirst{DeviceKind::kCpu, 0}, kSecond{DeviceKind::kCpu, 1};

TEST(AnswerPool, DevicesShareOneQueueAndAnswerAsOneWould) {
  std::map<uint64_t, std::vector<int32_t>> expected;
  for (const auto& devices : std::vector<std::vector<DeviceId>>{{kFirst}, {kFirst, kSecond}}) {
    Receiver receiver;
    auto pool =
        AnswerPool::start(system_files(), system_clock(), toy_pool("pool", devices), receiver);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    EXPECT_EQ((*pool)->context_max(), 512);
    EXPECT_FALSE((*pool)->weights_hash().empty());
    for (uint64_t id = 0; id < 40; ++id) {
      ASSERT_TRUE(
          (*pool)->post({id, id, random_tokens(id, 1 + static_cast<int64_t>(id % 9), 97)}).ok());
    }
    ASSERT_TRUE((*pool)->post({40, 40, {97}}).ok());
    (*pool)->close();
    ASSERT_TRUE((*pool)->wait().ok());
    ASSERT_EQ(receiver.answers.size(), 40u);
    EXPECT_THAT(receiver.refusals[40], HasSubstr("token 97"));
    for (const auto& [id, answer] : receiver.answers) {
      if (devices.size() == 1) expected[id] = answer.tokens;
      EXPECT_EQ(answer.tokens, expected[id]) << id;
    }
  }
}

TEST(AnswerPool, ACancelledPoolEndsWithWorkWaiting) {
  Receiver receiver;
  auto options = toy_pool("cancelled", {kFirst});
  options.generate.new_tokens_max = 500;
  options.generate.stop_token_ids = {96};
  auto pool = AnswerPool::start(system_files(), system_clock(), options, receiver);
  ASSERT_TRUE(pool.ok());
  for (uint64_t id = 0; id < 200; ++id) ASSERT_TRUE((*pool)->post(request(id)).ok());
  (*pool)->cancel();
  EXPECT_EQ((*pool)->wait().code(), StatusCode::kCancelled);
  EXPECT_TRUE(receiver.failures.empty());
  EXPECT_LT(receiver.answers.size(), 200u);
}

TEST(AnswerPool, BadOptionsAreRefusedByName) {
  Receiver receiver;
  const auto refusal = [&](const AnswerPoolOptions& options) {
    const auto pool = AnswerPool::start(system_files(), system_clock(), options, receiver);
    return pool.ok() ? "" : pool.status().message();
  };
  EXPECT_THAT(refusal(toy_pool("twice", {kFirst, kFirst})), HasSubstr("cpu:0 is given twice"));
  EXPECT_THAT(refusal(toy_pool("none", {})), HasSubstr("no device"));
  auto options = toy_pool("context", {kFirst});
  options.generate.context_max = 513;
  EXPECT_THAT(refusal(options), HasSubstr("has 512 positions"));
  options = toy_pool("missing", {kFirst});
  options.target = "no/such/folder";
  EXPECT_THAT(refusal(options), HasSubstr("cpu:0: cannot open no/such/folder"));
}

TEST(AnswerPool, OptionsThatGenerationRefusesAreADevicesFailure) {
  Receiver receiver;
  auto options = toy_pool("failing", {kFirst, kSecond});
  options.generate.temperature = -1;
  auto pool = AnswerPool::start(system_files(), system_clock(), options, receiver);
  ASSERT_TRUE(pool.ok());
  EXPECT_THAT((*pool)->wait().message(), HasSubstr("temperature"));
  EXPECT_FALSE(receiver.failures.empty());
}

}  // namespace
}  // namespace percheron

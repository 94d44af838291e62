// The parts of the service that need no process: messages as frames carry them, placement, orders.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "actors/service/message_fields.h"
#include "actors/service/order_book.h"
#include "actors/service/placement.h"
#include "actors/service/remote_actors.h"

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Produced some_features() {
  Produced produced;
  produced.target = 3;
  produced.work = Produce{{2, 17}, 40, -1, 5, uint64_t{1} << 40};
  produced.tokens = 4096;
  produced.seconds = 0.125;
  produced.outcome = {static_cast<int32_t>(StatusCode::kDataLoss), "a \"reason\"\n"};
  produced.crc32c = 0xfffffffe;
  return produced;
}

TEST(MessageFields, WhatIsWrittenIsRead) {
  Produced produced = some_features(), read;
  ASSERT_TRUE(FieldReader::decode(FieldWriter::encode(produced), read));
  EXPECT_EQ(read.work.id, produced.work.id);
  EXPECT_EQ(read.work.lease, -1);
  EXPECT_EQ(read.work.bytes, uint64_t{1} << 40);
  EXPECT_EQ(read.seconds, 0.125);
  EXPECT_EQ(read.outcome.message, produced.outcome.message);
  EXPECT_EQ(read.crc32c, 0xfffffffe);
  Evaluated evaluated, again;
  evaluated.rounds = {0, -7, 1 << 30};
  ASSERT_TRUE(FieldReader::decode(FieldWriter::encode(evaluated), again));
  EXPECT_THAT(again.rounds, ElementsAre(0, -7, 1 << 30));
}

// As another version may add them.
TEST(MessageFields, UnknownFieldsAreSkippedAndAbsentOnesKeepTheirDefaults) {
  TargetIdle idle{7};
  std::string bytes = FieldWriter::encode(idle);
  bytes += std::string("\xfa\x01\x03xyz", 6) + std::string("\xf8\x01\x05", 3);
  TargetIdle read;
  ASSERT_TRUE(FieldReader::decode(bytes, read));
  EXPECT_EQ(read.target, 7);
  Produced produced;
  ASSERT_TRUE(FieldReader::decode(std::string(), produced));
  EXPECT_EQ(produced.tokens, 0);
}

TEST(MessageFields, WhatIsCutOrOfAnotherTypeIsRefused) {
  Produced produced = some_features();
  const std::string bytes = FieldWriter::encode(produced);
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    Produced read;
    // A cut between two fields is a message of an older version.
    (void)FieldReader::decode(bytes.substr(0, cut), read);
  }
  Produced read;
  EXPECT_FALSE(FieldReader::decode(bytes.substr(0, bytes.size() - 1), read));
  EXPECT_FALSE(FieldReader::decode(std::string("\x0a\xff\xff\xff\xff\x0f", 6), read));
  EXPECT_FALSE(FieldReader::decode(std::string("\x09\x01\x02\x03\x04\x05\x06\x07\x08", 9), read));
}

TEST(RemoteActors, MessagesForNobodyAndOfNoTypeAreRefused) {
  proto::ActorMessage message;
  message.set_role(proto::ActorMessage::TRAINER);
  message.set_number(4);
  message.set_type("Reduce");
  EXPECT_THAT(deliver(message, Peers()).message(), HasSubstr("TRAINER 4, which is not here"));
  message.set_type("Format");
  EXPECT_THAT(deliver(message, Peers()).message(), HasSubstr("'Format'"));
}

proto::Run placed(const std::vector<std::string>& targets,
                  const std::vector<std::string>& trainers) {
  proto::Run run;
  for (const std::string& target : targets) run.mutable_placement()->add_targets(target);
  for (const std::string& trainer : trainers) run.mutable_placement()->add_trainers(trainer);
  return run;
}

TEST(Placement, NodesAndRangesAreRead) {
  const auto placement = read_placement(placed({"b/cuda:1-3", "cpu:0"}, {"cpu:0"}), "a");
  ASSERT_TRUE(placement.ok()) << placement.status().message();
  std::vector<std::string> targets;
  for (const PlacedDevices& device : placement->targets) targets.push_back(device.text());
  EXPECT_THAT(targets, ElementsAre("b/cuda:1", "b/cuda:2", "b/cuda:3", "a/cpu:0"));
  EXPECT_THAT(placement->nodes(), ElementsAre("b", "a"));
  const auto workers = placement->workers();
  EXPECT_EQ(workers.size(), 4u);
  EXPECT_EQ(workers.at({"a", {DeviceId{DeviceKind::kCpu, 0}}}).text(), "target 3, trainer 0");
  EXPECT_EQ(placement->cpu_devices("a"), 1);
}

TEST(Placement, BadEntriesAreNamedWithTheirKey) {
  const auto error_of = [](const std::string& value) {
    const auto placement = read_placement(placed({"cpu:0"}, {value}), "a");
    return placement.ok() ? std::string("accepted") : placement.status().message();
  };
  for (const char* value : {"/cpu:0", "a/", "a/cpu", "a/cpu:3-1", "a/cpu:0-x", "a/cpu:0-99999"}) {
    EXPECT_THAT(error_of(value), HasSubstr("placement.trainers: '" + std::string(value) + "'"));
  }
  EXPECT_THAT(error_of("a/cpu:0+x"), HasSubstr("'a/cpu:0+x' is no group like"));
  EXPECT_THAT(error_of("a/cpu:0+1"),
              HasSubstr("'a/cpu:0+1' is several devices, and one is wanted"));
  const auto several = read_placement(placed({"cpu:0"}, {"a/cpu:0", "b/cpu:0"}), "a");
  EXPECT_THAT(several.status().message(), HasSubstr("cluster.trusted_network: true"));
}

class OrderBookTest : public testing::Test {
 protected:
  proto::RunOrder order(uint64_t request, proto::RunOrder::Kind kind, bool release = false) {
    proto::RunOrder order;
    order.set_request(request);
    order.set_kind(kind);
    order.set_release_devices(release);
    return order;
  }
  std::vector<uint64_t> answered() {
    std::vector<uint64_t> requests;
    for (const auto& reply : replies_) requests.push_back(reply.request());
    return requests;
  }

  std::vector<proto::RunOrderReply> replies_;
  RunControl control_;
  OrderBook book_{control_, [this](const proto::RunOrderReply& r) { replies_.push_back(r); }};
};

TEST_F(OrderBookTest, APauseOfTwoOperatorsIsAnsweredWhenTheRunIsPaused) {
  book_.take(order(1, proto::RunOrder::PAUSE));
  book_.take(order(2, proto::RunOrder::PAUSE));
  book_.on_state({RunState::kPausing, 6});
  EXPECT_TRUE(replies_.empty());
  book_.on_state({RunState::kPaused, 7});
  EXPECT_THAT(answered(), ElementsAre(1, 2));
  EXPECT_EQ(replies_[0].step(), 7);
  book_.take(order(3, proto::RunOrder::PAUSE));  // It is so already.
  EXPECT_THAT(answered(), ElementsAre(1, 2, 3));
  EXPECT_EQ(book_.stop_signals(), 0);
}

TEST_F(OrderBookTest, ASnapshotOfAStepThatIsSavedAlreadyIsAnswered) {
  book_.take(order(1, proto::RunOrder::SNAPSHOT));
  EXPECT_TRUE(replies_.empty());
  book_.on_checkpoint_kept(40, "out/step-00000040");
  EXPECT_THAT(answered(), ElementsAre(1));
  EXPECT_EQ(replies_[0].step(), 40);
  EXPECT_EQ(replies_[0].error(), "");
}

TEST_F(OrderBookTest, WhoeverWaitsAtTheEndIsTold) {
  book_.take(order(1, proto::RunOrder::SNAPSHOT));
  book_.take(order(2, proto::RunOrder::PAUSE, true));
  EXPECT_EQ(book_.stop_signals(), 1);
  EXPECT_TRUE(book_.releases_devices());
  book_.on_end("is paused", 9);
  ASSERT_THAT(answered(), ElementsAre(2, 1));
  EXPECT_EQ(replies_[0].text(), "is paused");
  EXPECT_THAT(replies_[1].error(), HasSubstr("ended"));
}

TEST_F(OrderBookTest, AStopOverridesAPauseThatReleasesDevices) {
  book_.take(order(1, proto::RunOrder::PAUSE, true));
  book_.take(order(2, proto::RunOrder::STOP_NOW));
  EXPECT_FALSE(book_.releases_devices());
  EXPECT_EQ(book_.stop_signals(), 2);
}

}  // namespace
}  // namespace percheron

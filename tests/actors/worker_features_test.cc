#include "actors/service/worker_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <utility>

#include "actors/messages.h"
#include "actors/node/endpoint.h"
#include "base/clock.h"
#include "data/feature_region.h"

namespace percheron {
namespace {

using testing::HasSubstr;

FeaturesPtr some_features(int64_t index, size_t hidden_size = 3000) {
  Features features;
  features.batch.id = {0, index};
  features.batch.token_ids = {5, 6};
  features.batch.loss_mask = {0, 1};
  features.batch.offsets = {0, 2};
  features.batch.sample_ids = {40};
  features.dtype = DType::kBf16;
  features.slots = 2;
  features.hidden_size = static_cast<int64_t>(hidden_size);
  features.hidden_states.resize(2 * 2 * hidden_size * 2, static_cast<std::byte>(index));
  return std::make_shared<const Features>(std::move(features));
}

// A worker's features and, in this test's hand, the daemon's end of its link.
class WorkerFeaturesTest : public testing::Test {
 protected:
  WorkerFeaturesTest() {
    auto sockets = unix_socket_pair().value();
    link_ = std::make_unique<FrameLink>(unix_channel(std::move(sockets.first), "daemon").value(),
                                        system_clock());
    daemon_ = std::make_unique<FrameLink>(unix_channel(std::move(sockets.second), "worker").value(),
                                          system_clock());
    features_ = std::make_unique<WorkerFeatures>(
        *link_, system_clock(), endpoint_of("node1", proto::Endpoint::WORKER, "run", "cpu:0"),
        std::vector<std::string>{"node1"});
  }
  ~WorkerFeaturesTest() override { features_->close(); }

  ReceivedFrame publish(const FeaturesPtr& features) {
    Produced produced;
    produced.work.id = features->batch.id;
    EXPECT_TRUE(features_->publish(features, produced).ok());
    ReceivedFrame frame = daemon_->receive().value();
    EXPECT_TRUE(frame.frame.has_publish());
    EXPECT_EQ(frame.frame.publish().key().bytes(), produced.region_bytes);
    return frame;
  }
  static Result<Features> read(const ReceivedFrame& frame) {
    const proto::FeatureKey& key = frame.frame.publish().key();
    return read_feature_region(frame.fd.duplicate().value(), key.bytes(), key.crc32c());
  }
  void free(const ReceivedFrame& frame) {
    proto::RegionsFreed freed;
    freed.add_regions(frame.frame.publish().region());
    features_->freed(freed);
  }
  // What a fetch comes to when the daemon answers with this region.
  Result<FeaturesPtr> fetch(const ReceivedFrame& region) {
    Ticket ticket;
    ticket.id = {0, 1};
    ticket.region_bytes = region.frame.publish().key().bytes();
    ticket.crc32c = region.frame.publish().key().crc32c();
    std::promise<Result<FeaturesPtr>> done;
    features_->fetch(ticket, [&](Result<FeaturesPtr> read) { done.set_value(std::move(read)); });
    const ReceivedFrame asked = daemon_->receive().value();
    EXPECT_TRUE(asked.frame.has_fetch());
    proto::FeaturesFetched answer;
    answer.set_request(asked.frame.fetch().request());
    features_->fetched(answer, region.fd.duplicate().value());
    Result<FeaturesPtr> read = done.get_future().get();
    const ReceivedFrame back = daemon_->receive().value();
    EXPECT_TRUE(back.frame.has_given_back());
    EXPECT_EQ(back.frame.given_back().request(), answer.request());
    return read;
  }

  std::unique_ptr<FrameLink> link_, daemon_;
  std::unique_ptr<WorkerFeatures> features_;
};

TEST_F(WorkerFeaturesTest, ARegionIsUsedAgainWhenTheDaemonSaysSo) {
  const ReceivedFrame first = publish(some_features(1));
  EXPECT_FALSE(first.frame.publish().used_before());
  const ReceivedFrame second = publish(some_features(2));
  EXPECT_FALSE(second.frame.publish().used_before()) << "the first may still be read";
  EXPECT_NE(first.frame.publish().region(), second.frame.publish().region());
  EXPECT_EQ(read(first)->hidden_states, some_features(1)->hidden_states);

  free(first);
  const ReceivedFrame third = publish(some_features(3));
  EXPECT_TRUE(third.frame.publish().used_before());
  EXPECT_EQ(read(third)->hidden_states, some_features(3)->hidden_states);
  EXPECT_EQ(read(second)->hidden_states, some_features(2)->hidden_states);
  // The first's memory is the third's now, which its checksum tells.
  EXPECT_EQ(read(first).status().code(), StatusCode::kDataLoss);
}

TEST_F(WorkerFeaturesTest, WhatIsFreedTwiceOrUnknownIsNotUsedTwice) {
  const ReceivedFrame first = publish(some_features(1));
  free(first);
  free(first);
  const ReceivedFrame second = publish(some_features(2)), third = publish(some_features(3));
  EXPECT_TRUE(second.frame.publish().used_before());
  EXPECT_FALSE(third.frame.publish().used_before());
  EXPECT_EQ(read(second)->hidden_states, some_features(2)->hidden_states);
}

TEST_F(WorkerFeaturesTest, LargerFeaturesGetNewMemory) {
  free(publish(some_features(1, 3000)));
  const ReceivedFrame larger = publish(some_features(2, 30'000));
  EXPECT_FALSE(larger.frame.publish().used_before());
  EXPECT_EQ(read(larger)->hidden_states, some_features(2, 30'000)->hidden_states);
}

TEST_F(WorkerFeaturesTest, WhatWasReadIsGivenBack) {
  const ReceivedFrame published = publish(some_features(1));
  const Result<FeaturesPtr> read = fetch(published);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ((*read)->hidden_states, some_features(1)->hidden_states);
}

TEST_F(WorkerFeaturesTest, WhatCannotBeReadIsGivenBackToo) {
  ReceivedFrame published = publish(some_features(1));
  published.frame.mutable_publish()->mutable_key()->set_crc32c(
      published.frame.publish().key().crc32c() ^ 1);
  const Result<FeaturesPtr> read = fetch(published);
  EXPECT_EQ(read.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(read.status().message(), HasSubstr("checksum"));
}

}  // namespace
}  // namespace percheron

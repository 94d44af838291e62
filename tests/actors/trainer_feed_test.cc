#include "actors/trainer_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/base/fake_clock.h"

namespace percheron {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Gives features when a test says so.
class HeldFeatures final : public FeatureExchange {
 public:
  Status publish(FeaturesPtr, Produced&) override { return ok_status(); }
  void fetch(const Ticket& ticket, Done done) override {
    asked_[ticket.id.index] = std::move(done);
  }
  bool held_out_is_elsewhere() const override { return false; }

  void give(int64_t index) {
    auto features = std::make_shared<Features>();
    features->batch.id = {0, index};
    asked_.extract(index).mapped()(FeaturesPtr(std::move(features)));
  }
  void refuse(int64_t index) { asked_.extract(index).mapped()(not_found("they are gone")); }
  std::vector<int64_t> asked() const {
    std::vector<int64_t> indices;
    for (const auto& [index, done] : asked_) indices.push_back(index);
    return indices;
  }

 private:
  std::map<int64_t, Done> asked_;
};

class TrainerFeedTest : public testing::Test {
 protected:
  void take(int64_t index, int64_t membership = 0, bool in_order = false) {
    TakeTicket message;
    message.ticket.id = {0, index};
    message.lease = ++leases_;
    message.membership = membership;
    message.in_order = in_order;
    feed_.take(message);
  }
  TrainerFeed::Hooks hooks() {
    TrainerFeed::Hooks hooks;
    hooks.compute = [this](TrainerFeed::MicroBatch work) {
      EXPECT_EQ(work.features->batch.id, work.lease.id);
      computed_.push_back(work.lease.id.index);
      waited_.push_back(work.fetch_seconds);
    };
    hooks.prepare = [this](const FeaturesPtr& next) { prepared_.push_back(next->batch.id.index); };
    hooks.unreadable = [this](const TrainerLease& lease, const Status&) {
      unreadable_.push_back(lease.id.index);
    };
    return hooks;
  }

  FakeClock clock_;
  HeldFeatures exchange_;
  int64_t leases_ = 0;
  std::vector<int64_t> computed_, prepared_, unreadable_;
  std::vector<double> waited_;
  TrainerFeed feed_{exchange_, clock_, nullptr, hooks()};
};

TEST_F(TrainerFeedTest, AllAreFetchedAtOnceAndComputedOneAfterTheOtherAsTheyWereGiven) {
  for (int64_t index : {7, 3, 5}) take(index);
  EXPECT_THAT(exchange_.asked(), ElementsAre(3, 5, 7));
  exchange_.give(3);
  EXPECT_THAT(computed_, IsEmpty()) << "7 comes first";
  clock_.advance(2);
  exchange_.give(7);
  EXPECT_THAT(computed_, ElementsAre(7));
  EXPECT_THAT(prepared_, ElementsAre(3));
  clock_.advance(4);
  feed_.done();
  EXPECT_THAT(computed_, ElementsAre(7, 3));
  feed_.done();
  clock_.advance(1);
  exchange_.give(5);
  EXPECT_THAT(computed_, ElementsAre(7, 3, 5));
  EXPECT_THAT(waited_, ElementsAre(2, 0, 1)) << "only with nothing to compute";
  EXPECT_THAT(prepared_, ElementsAre(3)) << "what is begun at once is prepared by nobody";
}

TEST_F(TrainerFeedTest, OtherMembersTakeAwayWhatIsNotBegun) {
  for (int64_t index : {0, 1, 2}) take(index);
  exchange_.give(0);
  exchange_.give(1);
  feed_.regroup(1);
  take(3, 1);
  exchange_.give(2);  // Nobody's by now.
  exchange_.give(3);
  EXPECT_THAT(computed_, ElementsAre(0)) << "one at a time, also across memberships";
  feed_.done();
  EXPECT_THAT(computed_, ElementsAre(0, 3));
  feed_.done();
  take(1, 0);
  EXPECT_THAT(exchange_.asked(), IsEmpty()) << "it was given before the change";
}

TEST_F(TrainerFeedTest, WhatCannotBeReadHoldsUpNobodyButWhereTheOrderCounts) {
  for (const bool in_order : {false, true}) {
    SCOPED_TRACE(in_order);
    computed_.clear();
    unreadable_.clear();
    for (int64_t index : {0, 1, 2}) take(index, 0, in_order);
    exchange_.give(0);
    exchange_.refuse(1);  // while another is computed
    exchange_.give(2);
    feed_.done();
    EXPECT_THAT(unreadable_, ElementsAre(1));
    EXPECT_EQ(computed_, in_order ? std::vector<int64_t>{0} : std::vector<int64_t>({0, 2}));
    if (in_order) {
      take(1, 0, true);
      exchange_.give(1);
      feed_.done();
      EXPECT_THAT(computed_, ElementsAre(0, 1, 2));
    }
    feed_.done();
  }
}

}  // namespace
}  // namespace percheron

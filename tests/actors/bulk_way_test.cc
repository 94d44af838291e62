#include "actors/node/bulk_way.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "data/transport/frame_channel.h"

namespace percheron {
namespace {

using testing::HasSubstr;

Connection connection_with(bool peer_takes_ucx) {
  Connection connection;
  connection.stream = socket_stream(unix_socket_pair().value().first, "tcp").value();
  connection.peer.name = "beta";
  connection.peer.ucx = peer_takes_ucx;
  connection.purpose = Purpose::kBulk;
  return connection;
}

/// Hands over a stream of its own, or, where it fails, what it was given.
class FakeCarrier final : public UcxCarrier {
 public:
  Result<Carried> take_over(std::unique_ptr<ByteStream> connection, RandomBytes&,
                            Deadline deadline) override {
    ++asked;
    if (breaks) return unavailable("the connection is gone");
    if (hangs) {
      std::this_thread::sleep_until(deadline.time());
      return unavailable("said nothing in time");
    }
    if (fails || other_declines) {
      return Carried{std::move(connection), unavailable("UCX reaches nobody"), other_declines};
    }
    return Carried{socket_stream(unix_socket_pair().value().first, "ucx").value(), ok_status()};
  }
  Status decline(ByteStream&, Deadline) override {
    ++declined;
    return ok_status();
  }

  int asked = 0, declined = 0;
  bool fails = false, other_declines = false, breaks = false, hangs = false;
};

class HandClock final : public Clock {
 public:
  int64_t monotonic_ns() const override { return static_cast<int64_t>(seconds * 1e9); }
  double unix_seconds() const override { return seconds; }
  double seconds = 1;
};

class BulkWayTest : public testing::Test {
 protected:
  std::string way(bool peer_takes_ucx = true) {
    const auto stream = way_.stream_of(connection_with(peer_takes_ucx), Deadline::never());
    return stream.ok() ? (*stream)->peer() : stream.status().message();
  }
  std::string opened() {
    const auto stream = way_.open(
        "beta",
        [this]() -> Result<Connection> {
          ++connected_;
          return connection_with(true);
        },
        Deadline::never());
    return stream.ok() ? (*stream)->peer() : stream.status().message();
  }
  std::string said_of_ways(int count) {
    testing::internal::CaptureStderr();
    for (int i = 0; i < count; ++i) way();
    return testing::internal::GetCapturedStderr();
  }

  HandClock clock_;
  const std::shared_ptr<FakeCarrier> carrier_ = std::make_shared<FakeCarrier>();
  BulkWay way_{carrier_, system_random_bytes(), clock_, std::chrono::milliseconds(50)};
  int connected_ = 0;
};

TEST_F(BulkWayTest, IsUcxWhereBothTakeIt) {
  EXPECT_EQ(way(), "ucx");
  EXPECT_EQ(way(false), "tcp");
  EXPECT_EQ(carrier_->asked, 1);
  BulkWay without(nullptr, system_random_bytes(), clock_);
  EXPECT_EQ(without.stream_of(connection_with(true), Deadline::never()).value()->peer(), "tcp");
}

// Neither the time of the proof is spent again, nor is UCX given up for ever.
TEST_F(BulkWayTest, IsTheConnectionForAWhileWhereUcxFails) {
  carrier_->fails = true;
  EXPECT_EQ(way(), "tcp");
  carrier_->fails = false;
  clock_.seconds += BulkWay::kFailedMinutes * 60 - 1;
  EXPECT_EQ(way(), "tcp");
  EXPECT_EQ(carrier_->asked, 1);
  EXPECT_EQ(carrier_->declined, 1);
  clock_.seconds += 2;
  EXPECT_EQ(way(), "ucx");
  EXPECT_EQ(carrier_->asked, 2);
}

TEST_F(BulkWayTest, UcxIsTriedAgainWhereTheOtherEndDeclined) {
  carrier_->other_declines = true;
  EXPECT_EQ(way(), "tcp");
  carrier_->other_declines = false;
  EXPECT_EQ(way(), "ucx");
}

TEST_F(BulkWayTest, SaysSoOnceOfEachNodeAndAgainWhenItChanges) {
  EXPECT_THAT(said_of_ways(1), HasSubstr("features to and from beta go by UCX"));
  EXPECT_EQ(said_of_ways(2), "");
  carrier_->fails = true;
  EXPECT_THAT(said_of_ways(1), HasSubstr("beta go over TCP: UCX reaches nobody"));
  EXPECT_EQ(said_of_ways(2), "");
}

TEST_F(BulkWayTest, AConnectionThatBreaksIsAnErrorAndSaysNothingOfUcx) {
  carrier_->breaks = true;
  EXPECT_EQ(opened(), "the connection is gone");
  EXPECT_EQ(connected_, 1);
  carrier_->breaks = false;
  EXPECT_EQ(opened(), "ucx");
}

TEST_F(BulkWayTest, AnotherConnectionIsMadeWhereUcxTakesTooLong) {
  carrier_->hangs = true;
  EXPECT_EQ(opened(), "tcp");
  EXPECT_EQ(connected_, 2);
  EXPECT_EQ(opened(), "tcp");
  EXPECT_EQ(connected_, 3);
  EXPECT_EQ(carrier_->asked, 1);
}

}  // namespace
}  // namespace percheron

// Bulk by UCX: over whatever UCX finds for the loopback device, which is TCP, unless UCX_TLS says
// otherwise.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "data/transport/ucx_carrier.h"
#include "tests/data/transport/bulk_fixture.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Streams = std::pair<std::unique_ptr<ByteStream>, std::unique_ptr<ByteStream>>;

std::unique_ptr<UcxCarrier> open_carrier() {
  auto carrier = UcxCarrier::open("lo");
  EXPECT_TRUE(carrier.ok()) << carrier.status().message();
  return std::move(carrier).value();
}

Streams connected() {
  auto sockets = unix_socket_pair().value();
  return {socket_stream(std::move(sockets.first), "node2").value(),
          socket_stream(std::move(sockets.second), "node1").value()};
}

Result<UcxCarrier::Carried> take_over(UcxCarrier& carrier, std::unique_ptr<ByteStream> stream) {
  return carrier.take_over(std::move(stream), system_random_bytes(), soon());
}

/// Changes one byte of what is written.
class ChangedStream final : public ByteStream {
 public:
  ChangedStream(std::unique_ptr<ByteStream> stream, size_t at)
      : stream_(std::move(stream)), at_(at) {}
  Result<std::optional<size_t>> read_some(std::span<std::byte> into, Deadline deadline) override {
    return stream_->read_some(into, deadline);
  }
  Status write(std::span<const std::byte> bytes, Deadline deadline) override {
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    if (at_ - written_ < copy.size()) copy[at_ - written_] ^= std::byte{1};
    written_ += copy.size();
    return stream_->write(copy, deadline);
  }
  void close() override { stream_->close(); }
  void finish() override { stream_->finish(); }
  std::string peer() const override { return stream_->peer(); }

 private:
  const std::unique_ptr<ByteStream> stream_;
  const size_t at_;
  size_t written_ = 0;
};

/// A node that offers a region by UCX, and who pulls it.
class UcxTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 12'000'003;

  ~UcxTest() override {
    for (const auto& stream : served_) stream->close();
    for (std::thread& thread : threads_) thread.join();
  }

  BulkRequest offer() {
    region = std::make_shared<const SharedRegion>(random_region(kBytes));
    EXPECT_TRUE(regions.add(3, 1, region, kBytes).ok());
    return {3, 1, kBytes, crc32c(region->bytes())};
  }
  BulkClient::Connect connector() {
    return [this](Deadline) -> Result<std::unique_ptr<ByteStream>> {
      Streams streams = connected();
      {
        const std::lock_guard lock(mutex_);
        threads_.emplace_back(
            [this, end = std::move(streams.second)]() mutable { serve(std::move(end)); });
      }
      PERCHERON_ASSIGN_OR_RETURN(UcxCarrier::Carried carried,
                                 take_over(*carrier_, std::move(streams.first)));
      if (!carried.ucx.ok()) return carried.ucx;
      return std::move(carried.stream);
    };
  }
  void expect_arrived(const Result<PulledRegion>& pulled) const {
    ASSERT_TRUE(pulled.ok()) << pulled.status().message();
    EXPECT_TRUE(std::ranges::equal(pulled->region.bytes(), region->bytes()));
  }

  std::shared_ptr<const SharedRegion> region;
  BulkRegions regions;
  ByteCredits credits{100'000'000};
  std::atomic<bool> silent{false};  // takes requests and answers none
  Collected<size_t> unanswered;     // bytes of requests, as they were read while silent
  Collected<Status> statuses;

 private:
  void serve(std::unique_ptr<ByteStream> end) {
    Result<UcxCarrier::Carried> carried = take_over(*carrier_, std::move(end));
    ASSERT_TRUE(carried.ok()) << carried.status().message();
    const std::shared_ptr<ByteStream> stream = std::move(carried->stream);
    {
      const std::lock_guard lock(mutex_);
      served_.push_back(stream);
    }
    while (silent) {
      std::array<std::byte, 64> ignored;
      const auto count = stream->read_some(ignored, soon());
      if (!count.ok() || count->value_or(0) == 0) return;
      unanswered.add(count->value());
    }
    statuses.add(serve_bulk(*stream, regions));
  }

  const std::unique_ptr<UcxCarrier> carrier_ = open_carrier();
  std::mutex mutex_;
  std::vector<std::shared_ptr<ByteStream>> served_;
  std::vector<std::thread> threads_;
};

TEST_F(UcxTest, RegionsArriveOverSeveralStreams) {
  const BulkRequest request = offer();
  BulkClient client("node2", connector(), credits, {});
  for (int i = 0; i < 3; ++i) expect_arrived(client.pull(request, soon()));
  EXPECT_EQ(client.counts().pulls, 3);
  EXPECT_EQ(client.counts().chunks_retried, 0);
  EXPECT_EQ(client.pull({3, 7, kBytes, 0}, soon()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(credits.bytes_held(), 0u);
  client.close();
  const Status served = statuses.wait_for(1).front();
  EXPECT_TRUE(served.ok()) << served.message();
}

TEST_F(UcxTest, ASilentPeerIsGivenUp) {
  silent = true;
  const BulkRequest request = offer();
  BulkClientOptions options;
  options.chunk_timeout = std::chrono::milliseconds(200);
  BulkClient client("node2", connector(), credits, options);
  const auto pulled = client.pull(request, soon());
  EXPECT_EQ(pulled.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(pulled.status().message(), HasSubstr("did not answer in time"));
}

TEST_F(UcxTest, ACancelledPullEndsAtOnce) {
  silent = true;
  const BulkRequest request = offer();
  BulkClient client("node2", connector(), credits, {});
  PullCancellation cancellation;
  std::chrono::steady_clock::time_point cancelled_at;
  std::thread canceller([&] {
    EXPECT_FALSE(unanswered.wait_for(1).empty());
    cancelled_at = std::chrono::steady_clock::now();
    cancellation.cancel();
  });
  EXPECT_EQ(client.pull(request, soon(), &cancellation).status().code(), StatusCode::kCancelled);
  const auto end = std::chrono::steady_clock::now();
  canceller.join();
  EXPECT_LT(end - cancelled_at, std::chrono::seconds(5));
}

TEST(UcxCarrier, TheEndOfThePeerIsNoticed) {
  const auto carrier = open_carrier();
  Streams streams = connected();
  std::thread other([&] {
    const auto carried = take_over(*carrier, std::move(streams.second));
    EXPECT_TRUE(carried.ok() && carried->ucx.ok());
  });  // which is gone at once
  const auto carried = take_over(*carrier, std::move(streams.first));
  other.join();
  ASSERT_TRUE(carried.ok()) << carried.status().message();
  std::array<std::byte, 8> bytes;
  const auto read = carried->stream->read_some(bytes, Deadline::never());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, std::optional<size_t>(0));
  EXPECT_EQ(carried->stream->write(bytes, soon()).code(), StatusCode::kUnavailable);
}

// As where somebody else has come to the port that UCX listens at.
TEST(UcxCarrier, WithoutTheTokenBothStayOnTheConnection) {
  const auto carrier = open_carrier();
  Streams streams = connected();
  const size_t last_of_token = [&] {
    // Its place depends on the length of the address, which comes first.
    Streams probe = connected();
    std::thread first([&] { (void)take_over(*carrier, std::move(probe.first)); });
    std::array<char, 4> length;
    EXPECT_TRUE(
        read_exactly(*probe.second, std::as_writable_bytes(std::span(length)), soon()).ok());
    probe.second->close();
    first.join();
    return 4 + static_cast<size_t>(static_cast<unsigned char>(length[0])) +
           256 * static_cast<size_t>(static_cast<unsigned char>(length[1])) + 31;
  }();
  std::optional<Result<UcxCarrier::Carried>> theirs;
  std::thread other([&] {
    theirs.emplace(take_over(
        *carrier, std::make_unique<ChangedStream>(std::move(streams.second), last_of_token)));
  });
  const auto ours = take_over(*carrier, std::move(streams.first));
  other.join();
  ASSERT_TRUE(ours.ok() && theirs->ok());
  EXPECT_THAT((*theirs)->ucx.message(), HasSubstr("another than the connection"));
  EXPECT_FALSE(ours->ucx.ok());
  std::array<std::byte, 3> bytes = {std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_TRUE(ours->stream->write(bytes, soon()).ok());
  std::array<std::byte, 3> read{};
  ASSERT_TRUE(read_exactly(*(*theirs)->stream, read, soon()).ok());
  EXPECT_EQ(read, bytes);
}

TEST(UcxCarrier, WithoutUcxAtTheOtherEndTheConnectionStays) {
  const auto carrier = open_carrier();
  Streams streams = connected();
  const std::array<std::byte, 4> nothing{};
  ASSERT_TRUE(streams.second->write(nothing, soon()).ok());
  const auto carried = take_over(*carrier, std::move(streams.first));
  ASSERT_TRUE(carried.ok());
  EXPECT_THAT(carried->ucx.message(), HasSubstr("fails at the other end"));
  EXPECT_EQ(carried->stream->peer(), "node2");
}

TEST(UcxCarrier, AnEndThatDeclinesCostsNoProof) {
  const auto carrier = open_carrier();
  Streams streams = connected();
  std::thread other([&] { EXPECT_TRUE(carrier->decline(*streams.second, soon()).ok()); });
  const auto carried = take_over(*carrier, std::move(streams.first));
  other.join();
  ASSERT_TRUE(carried.ok()) << carried.status().message();
  EXPECT_FALSE(carried->ucx.ok());
  EXPECT_TRUE(carried->declined);
  // Nothing that was said of UCX is left on the connection.
  std::array<std::byte, 3> bytes = {std::byte{1}, std::byte{2}, std::byte{3}}, read{};
  ASSERT_TRUE(carried->stream->write(bytes, soon()).ok());
  ASSERT_TRUE(read_exactly(*streams.second, read, soon()).ok());
  EXPECT_EQ(read, bytes);
}

TEST(UcxCarrier, AWriteThatIsGivenUpSaysSoAfterwardsToo) {
  const auto carrier = open_carrier();
  Streams streams = connected();
  std::optional<Result<UcxCarrier::Carried>> theirs;
  std::thread other([&] { theirs.emplace(take_over(*carrier, std::move(streams.second))); });
  const auto ours = take_over(*carrier, std::move(streams.first));
  other.join();
  ASSERT_TRUE(ours.ok() && ours->ucx.ok() && theirs->ok());
  const std::vector<std::byte> bytes(size_t{64} << 20);
  const Status first = ours->stream->write(bytes, Deadline::after(std::chrono::milliseconds(100)));
  EXPECT_THAT(first.message(), HasSubstr("took no bytes in time"));
  EXPECT_THAT(ours->stream->write(bytes, soon()).message(),
              AllOf(HasSubstr("was given up"), HasSubstr("took no bytes in time")));
}

TEST(UcxCarrier, WhereUcxReachesNobodyTheConnectionStays) {
  const auto carrier = UcxCarrier::open("no-such-device");
  ASSERT_TRUE(carrier.ok()) << carrier.status().message();
  Streams streams = connected();
  std::thread other([&] {
    const auto carried = take_over(**carrier, std::move(streams.second));
    EXPECT_TRUE(carried.ok() && !carried->ucx.ok());
  });
  const auto carried = take_over(**carrier, std::move(streams.first));
  other.join();
  ASSERT_TRUE(carried.ok()) << carried.status().message();
  EXPECT_FALSE(carried->ucx.ok());
  EXPECT_EQ(carried->stream->peer(), "node2");
}

}  // namespace
}  // namespace percheron

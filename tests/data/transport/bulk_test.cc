#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/transport/bulk_wire.h"
#include "tests/data/transport/bulk_fixture.h"

namespace percheron {
namespace {

using testing::HasSubstr;

TEST_F(BulkTest, ARegionArrivesOverSeveralStreams) {
  const BulkRequest request = offer();
  BulkClient client("node2", node.connector(), credits, small_chunks());
  const auto pulled = client.pull(request, soon());
  expect_arrived(pulled);
  EXPECT_GT(node.connections(), 1u);
  EXPECT_LE(node.connections(), 4u);
  EXPECT_EQ(client.counts().pulls, 1);
  EXPECT_EQ(client.counts().bytes, kBytes);
  EXPECT_EQ(client.counts().chunks_retried, 0);
}

TEST_F(BulkTest, EverySizeAroundAChunkArrives) {
  for (const size_t bytes : {1, 9'999, 10'000, 10'001, 20'000, 40'001}) {
    BulkNode other;
    region = std::make_shared<const SharedRegion>(random_region(bytes));
    ASSERT_TRUE(other.regions.add(0, 0, region, bytes).ok());
    BulkClient client("node2", other.connector(), credits, small_chunks());
    expect_arrived(client.pull({0, 0, bytes, crc32c(region->bytes())}, soon()));
    client.close();
  }
}

TEST_F(BulkTest, ConnectionsAreUsedAgain) {
  const BulkRequest request = offer();
  BulkClientOptions options = small_chunks();
  options.streams_max = 2;
  BulkClient client("node2", node.connector(), credits, options);
  for (int i = 0; i < 5; ++i) expect_arrived(client.pull(request, soon()));
  EXPECT_LE(node.connections(), 2u);
}

TEST_F(BulkTest, PullsOfSeveralThreadsShareTheConnections) {
  const BulkRequest request = offer();
  BulkClientOptions options = small_chunks();
  options.streams_max = 3;
  BulkClient client("node2", node.connector(), credits, options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) expect_arrived(client.pull(request, soon()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(node.connections(), 3u);
  EXPECT_EQ(client.counts().pulls, 18);
}

TEST_F(BulkTest, CreditsLimitWhatAllPullsHold) {
  const BulkRequest request = offer();
  ByteCredits two_regions(2 * kBytes);
  BulkClient client("node2", node.connector(), two_regions, small_chunks());
  auto first = client.pull(request, soon());
  const auto second = client.pull(request, soon());
  expect_arrived(first);
  expect_arrived(second);
  const auto third = client.pull(request, Deadline::now());
  EXPECT_EQ(third.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(third.status().message(), HasSubstr("pulls hold"));
  // The third comes as soon as one is used and gone.
  std::thread waits([&] { expect_arrived(client.pull(request, soon())); });
  { const PulledRegion used = std::move(first).value(); }
  waits.join();
  EXPECT_EQ(client.counts().failed, 1);
}

TEST_F(BulkTest, ARegionIsUsedAgain) {
  const BulkRequest request = offer();
  BulkClient client("node2", node.connector(), credits, small_chunks());
  auto used = SharedRegion::create("test", kBytes + 5000, SharedRegion::Backing::kReserved).value();
  std::ranges::fill(used.writable_bytes(), std::byte{1});
  const std::byte* memory = used.bytes().data();
  for (int i = 0; i < 2; ++i) {
    auto pulled = client.pull_into(std::move(used), request, soon());
    ASSERT_TRUE(pulled.ok()) << pulled.status().message();
    EXPECT_EQ(pulled->region.bytes().data(), memory);
    EXPECT_TRUE(std::ranges::equal(pulled->region.bytes().first(kBytes), region->bytes()));
    EXPECT_EQ(pulled->region.bytes()[kBytes], std::byte{1});
    used = std::move(pulled->region);
  }
  auto small = SharedRegion::create("test", kBytes - 1, SharedRegion::Backing::kOnDemand).value();
  const auto refused = client.pull_into(std::move(small), request, soon());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  auto read_only =
      SharedRegion::map(used.fd().duplicate().value(), used.size(), SharedRegion::Access::kRead);
  EXPECT_THAT(client.pull_into(std::move(read_only).value(), request, soon()).status().message(),
              HasSubstr("read-only"));
  EXPECT_EQ(credits.bytes_held(), 0u);
}

TEST_F(BulkTest, APullThatWaitsForCreditsHoldsNoMemory) {
  const BulkRequest request = offer();
  ByteCredits one_region(kBytes);
  RegionPool pool("test", 10 * kBytes);
  BulkClient client("node2", node.connector(), one_region, small_chunks());
  auto first = client.pull_into(pool, request, soon());
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(client.pull_into(pool, request, Deadline::now()).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(pool.counts().created, 1);
  pool.give_back(std::move(first->region));
  first->hold = {};
  auto second = client.pull_into(pool, request, soon());
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_TRUE(std::ranges::equal(second->region.bytes().first(kBytes), region->bytes()));
  EXPECT_EQ(pool.counts().reused, 1);
}

TEST_F(BulkTest, TheMemoryOfAFailedPullIsUsedAgain) {
  BulkRequest request = offer();
  RegionPool pool("test", 10 * kBytes);
  BulkClient client("node2", node.connector(), credits, small_chunks());
  ++request.generation;
  EXPECT_EQ(client.pull_into(pool, request, soon()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(pool.counts().idle_bytes, RegionPool::size_for(kBytes));
  EXPECT_EQ(credits.bytes_held(), 0u);
}

TEST_F(BulkTest, MoreThanAllCreditsIsRefused) {
  const BulkRequest request = offer();
  ByteCredits few(kBytes - 1);
  BulkClient client("node2", node.connector(), few, small_chunks());
  EXPECT_EQ(client.pull(request, soon()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(node.connections(), 0u);
}

TEST_F(BulkTest, ThroughTlsOverOnePort) {
  const TestCluster cluster;
  const BulkRequest request = offer();
  const auto listener = Listener::start({}, cluster.credentials("node2"), system_random_bytes(),
                                        [&](Connection connection) {
                                          EXPECT_EQ(connection.purpose, Purpose::kBulk);
                                          (void)serve_bulk(*connection.stream, node.regions);
                                        });
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  const Credentials one = cluster.credentials("node1");
  BulkClient client(
      "node2",
      [&](Deadline deadline) -> Result<std::unique_ptr<ByteStream>> {
        PERCHERON_ASSIGN_OR_RETURN(Connection connection,
                                   connect_node((*listener)->advertised(), "node2", one,
                                                Purpose::kBulk, system_random_bytes(), deadline));
        return std::move(connection.stream);
      },
      credits, small_chunks());
  expect_arrived(client.pull(request, soon()));
  client.close();
}

TEST(BulkRegions, ASlotNeverGoesBackAGeneration) {
  BulkRegions regions;
  const auto region = std::make_shared<const SharedRegion>(random_region(100));
  ASSERT_TRUE(regions.add(1, 5, region, 100).ok());
  for (const uint64_t generation : {5, 4}) {
    const Status status = regions.add(1, generation, region, 100);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("slot 1 is at generation 5"));
  }
  regions.remove(1, 4);  // an old one: no effect
  EXPECT_NE(regions.find(1, 5).region, nullptr);
  EXPECT_EQ(regions.find(1, 4).region, nullptr);
  regions.remove(1, 5);
  EXPECT_EQ(regions.find(1, 5).region, nullptr);
  EXPECT_FALSE(regions.add(1, 5, region, 100).ok());
  EXPECT_TRUE(regions.add(1, 6, region, 100).ok());
  EXPECT_EQ(regions.add(2, 0, region, 101).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(regions.add(2, 0, nullptr, 1).code(), StatusCode::kInvalidArgument);
}

// A slot's memory is used again only when nobody reads it.
TEST(BulkRegions, ATransferKeepsItsRegion) {
  BulkRegions regions;
  std::weak_ptr<const SharedRegion> watched;
  BulkRegions::Offer offer;
  {
    const auto region = std::make_shared<const SharedRegion>(random_region(100));
    watched = region;
    ASSERT_TRUE(regions.add(1, 0, region, 100).ok());
    offer = regions.find(1, 0);
  }
  regions.remove(1, 0);
  EXPECT_FALSE(watched.expired());
  offer = {};
  EXPECT_TRUE(watched.expired());
}

class BulkServerTest : public BulkTest {
 protected:
  BulkServerTest() : stream(node.connect(soon()).value()) {}

  ChunkAnswer ask(const ChunkRequest& request) const {
    EXPECT_TRUE(stream->write(encode(request), soon()).ok());
    std::array<std::byte, kBulkAnswerBytes> bytes;
    EXPECT_TRUE(read_exactly(*stream, bytes, soon()).ok());
    return decode(std::span<const std::byte, kBulkAnswerBytes>(bytes));
  }

  std::unique_ptr<ByteStream> stream;
};

TEST_F(BulkServerTest, RangesOutsideARegionAreRefused) {
  offer(1000);
  const ChunkRequest outside[] = {{3, 1, 0, 0},
                                  {3, 1, 0, 1001},
                                  {3, 1, 1000, 1},
                                  {3, 1, 999, 2},
                                  {3, 1, ~uint64_t{0}, 2},
                                  {3, 1, 1, ~uint32_t{0}},
                                  {3, 1, 1001, 0},
                                  {3, 1, ~uint64_t{0}, ~uint32_t{0}}};
  for (const ChunkRequest& request : outside) {
    EXPECT_EQ(ask(request).status, BulkAnswer::kOutOfRange);
  }
  EXPECT_EQ(ask({3, 2, 0, 1}).status, BulkAnswer::kGone);
  EXPECT_EQ(ask({4, 1, 0, 1}).status, BulkAnswer::kGone);
  EXPECT_EQ(ask({3, 1, 999, 1}).status, BulkAnswer::kChunkFollows);
}

TEST_F(BulkServerTest, OffsetsBeyondFourGibibytesAreServed) {
  constexpr uint64_t kOffset = (uint64_t{4} << 30) + 12345;
  auto sparse = SharedRegion::create("test", kOffset + 10, SharedRegion::Backing::kOnDemand);
  ASSERT_TRUE(sparse.ok());
  sparse->writable_bytes()[kOffset] = std::byte{77};
  const auto shared = std::make_shared<const SharedRegion>(std::move(sparse).value());
  ASSERT_TRUE(node.regions.add(9, 1, shared, shared->size()).ok());
  const ChunkAnswer answer = ask({9, 1, kOffset, 10});
  ASSERT_EQ(answer.status, BulkAnswer::kChunkFollows);
  ASSERT_EQ(answer.length, 10u);
  std::array<std::byte, 10> bytes;
  ASSERT_TRUE(read_exactly(*stream, bytes, soon()).ok());
  EXPECT_EQ(bytes[0], std::byte{77});
}

TEST_F(BulkServerTest, AStreamOutOfStepIsEnded) {
  const std::string garbage(kBulkRequestBytes, 'g');
  ASSERT_TRUE(stream->write(std::as_bytes(std::span(garbage)), soon()).ok());
  EXPECT_THAT(node.statuses.wait_for(1)[0].message(), HasSubstr("no request for bytes"));
}

TEST_F(BulkServerTest, APeerThatLeavesBetweenRequestsIsNoError) {
  stream.reset();
  EXPECT_TRUE(node.statuses.wait_for(1)[0].ok());
}

TEST_F(BulkServerTest, APeerThatLeavesWithinARequestIsOne) {
  ASSERT_TRUE(stream->write(std::as_bytes(std::span("half", 4)), soon()).ok());
  stream.reset();
  EXPECT_EQ(node.statuses.wait_for(1)[0].code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace percheron

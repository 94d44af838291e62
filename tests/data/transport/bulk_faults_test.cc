// Pulls whose peer dies, hangs, lies or forgets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/data/transport/bulk_fixture.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BulkFaultsTest : public BulkTest {
 protected:
  Result<PulledRegion> pull(const BulkRequest& request,
                            const BulkClientOptions& options = small_chunks()) {
    client_ = std::make_unique<BulkClient>("node2", node.connector(), credits, options);
    return client_->pull(request, soon());
  }
  BulkClientCounts counts() const { return client_->counts(); }

 private:
  std::unique_ptr<BulkClient> client_;
};

TEST_F(BulkFaultsTest, AConnectionThatBreaksIsReplacedOnce) {
  const BulkRequest request = offer();
  node.fault_of = [](size_t i) { return StreamFault{.close_after = i < 2 ? 25'000 : ~size_t{0}}; };
  expect_arrived(pull(request, one_stream()));
  EXPECT_EQ(counts().chunks_retried, 2);
}

TEST_F(BulkFaultsTest, AChunkThatFailsTwiceEndsThePull) {
  const BulkRequest request = offer();
  node.fault_of = [](size_t) { return StreamFault{.close_after = 5'000}; };
  const auto pulled = pull(request);
  EXPECT_EQ(pulled.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(pulled.status().message(), HasSubstr("node2"));
  EXPECT_EQ(credits.bytes_held(), 0u);
  EXPECT_EQ(counts().failed, 1);
}

TEST_F(BulkFaultsTest, APeerKilledWithinAPullEndsIt) {
  const BulkRequest request = offer(10'000'000);
  std::atomic<size_t> connections{0};
  node.fault_of = [&](size_t) {
    ++connections;
    return StreamFault{.stop_after = 1'000'000};
  };
  std::thread killer([&] {
    while (connections == 0) std::this_thread::yield();
    node.kill();
  });
  const auto pulled = pull(request);
  killer.join();
  EXPECT_EQ(pulled.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(credits.bytes_held(), 0u);
}

TEST_F(BulkFaultsTest, ASilentPeerIsGivenUpAndReplaced) {
  const BulkRequest request = offer();
  node.fault_of = [](size_t i) { return StreamFault{.stop_after = i == 0 ? 25'000 : ~size_t{0}}; };
  BulkClientOptions options = one_stream();
  options.chunk_timeout = milliseconds(200);
  expect_arrived(pull(request, options));
}

TEST_F(BulkFaultsTest, ADeadlineEndsAPull) {
  const BulkRequest request = offer();
  node.fault_of = [](size_t) { return StreamFault{.stop_after = 25'000}; };
  BulkClient client("node2", node.connector(), credits, small_chunks());
  const auto pulled = client.pull(request, Deadline::after(milliseconds(100)));
  EXPECT_EQ(pulled.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(credits.bytes_held(), 0u);
}

TEST_F(BulkFaultsTest, ACorruptChunkIsAskedForAgain) {
  const BulkRequest request = offer();
  node.fault_of = [](size_t i) { return StreamFault{.corrupt_at = i == 0 ? 15'000 : ~size_t{0}}; };
  expect_arrived(pull(request, one_stream()));
  EXPECT_EQ(counts().chunks_retried, 1);
}

TEST_F(BulkFaultsTest, BytesThatStayCorruptAreNeverHandedOut) {
  const BulkRequest request = offer();
  node.fault_of = [](size_t) { return StreamFault{.corrupt_at = 5'000}; };
  const auto pulled = pull(request);
  EXPECT_EQ(pulled.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(pulled.status().message(),
              AllOf(HasSubstr("slot 3, generation 1"), HasSubstr("contradict their checksum")));
}

TEST_F(BulkFaultsTest, ACorruptHeaderIsAskedForAgain) {
  const BulkRequest request = offer();
  for (const size_t at : {0, 3, 4, 7}) {
    node.fault_of = [&, first = node.connections()](size_t i) {
      return StreamFault{.corrupt_at = i == first ? at : ~size_t{0}};
    };
    expect_arrived(pull(request, one_stream()));
    EXPECT_EQ(counts().chunks_retried, 1);
  }
}

TEST_F(BulkFaultsTest, OtherBytesThanTheTicketSaysAreRefused) {
  BulkRequest request = offer();
  request.crc32c ^= 1;
  const auto pulled = pull(request);
  EXPECT_EQ(pulled.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(pulled.status().message(), HasSubstr("contradict the checksum of their ticket"));
}

TEST_F(BulkFaultsTest, ARecycledGenerationIsGone) {
  const BulkRequest request = offer();
  const auto next = std::make_shared<const SharedRegion>(random_region(kBytes, 2));
  ASSERT_TRUE(node.regions.add(3, 2, next, kBytes).ok());
  const auto pulled = pull(request);
  EXPECT_EQ(pulled.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(pulled.status().message(), HasSubstr("no longer has slot 3, generation 1"));
  EXPECT_EQ(counts().chunks_retried, 0);
}

TEST_F(BulkFaultsTest, AGenerationRecycledWithinAPullIsGone) {
  const BulkRequest request = offer(10'000'000);
  // The first connection ends in the middle; then the slot has another generation.
  node.fault_of = [&](size_t i) {
    if (i > 0) node.regions.remove(3, 1);
    return StreamFault{.close_after = i == 0 ? 100'000 : ~size_t{0}};
  };
  EXPECT_EQ(pull(request, one_stream()).status().code(), StatusCode::kNotFound);
}

TEST_F(BulkFaultsTest, FewerBytesThanTheTicketSaysIsAnError) {
  BulkRequest request = offer();
  request.bytes += 1;
  const auto pulled = pull(request);
  EXPECT_EQ(pulled.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(pulled.status().message(), HasSubstr("has fewer than 1000004 bytes"));
}

TEST_F(BulkFaultsTest, APeerThatCannotBeReachedIsAnError) {
  const BulkRequest request = offer();
  node.kill();
  EXPECT_THAT(pull(request).status().message(), HasSubstr("it is gone"));
}

// The server closed connections that nobody used for long; the client learns it by its next pull.
TEST_F(BulkFaultsTest, ConnectionsThatEndedMeanwhileAreReplaced) {
  const BulkRequest request = offer();
  BulkClient client("node2", node.connector(), credits, small_chunks());
  // A chunk may not be tried on a second one that has ended: several rounds, for chance has a part.
  for (int i = 0; i < 10; ++i) {
    expect_arrived(client.pull(request, soon()));
    node.end_connections();
  }
}

TEST_F(BulkFaultsTest, APullIsCancelled) {
  const BulkRequest request = offer();
  std::atomic<bool> connected{false};
  node.fault_of = [&](size_t) {
    connected = true;
    return StreamFault{.stop_after = 25'000};
  };
  BulkClient client("node2", node.connector(), credits, small_chunks());
  PullCancellation cancellation;
  std::thread canceller([&] {
    while (!connected) std::this_thread::yield();
    cancellation.cancel();
  });
  EXPECT_EQ(client.pull(request, soon(), &cancellation).status().code(), StatusCode::kCancelled);
  canceller.join();
  EXPECT_EQ(credits.bytes_held(), 0u);
}

TEST_F(BulkFaultsTest, APullThatWaitsForCreditsIsCancelled) {
  const BulkRequest request = offer();
  ByteCredits one(kBytes);
  BulkClient client("node2", node.connector(), one, small_chunks());
  const auto held = client.pull(request, soon());
  expect_arrived(held);
  PullCancellation cancellation;
  std::thread canceller([&] { cancellation.cancel(); });
  EXPECT_EQ(client.pull(request, soon(), &cancellation).status().code(), StatusCode::kCancelled);
  canceller.join();
}

TEST_F(BulkFaultsTest, CloseEndsEveryPull) {
  const BulkRequest request = offer();
  std::atomic<int> connected{0};
  node.fault_of = [&](size_t) {
    ++connected;
    return StreamFault{.stop_after = 25'000};
  };
  BulkClient client("node2", node.connector(), credits, small_chunks());
  std::vector<std::thread> pulls;
  for (int i = 0; i < 3; ++i) {
    pulls.emplace_back(
        [&] { EXPECT_EQ(client.pull(request, soon()).status().code(), StatusCode::kCancelled); });
  }
  while (connected == 0) std::this_thread::yield();
  client.close();
  for (std::thread& pull : pulls) pull.join();
  EXPECT_EQ(client.pull(request, soon()).status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace percheron

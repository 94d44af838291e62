// What strangers send to an open port: none of it may crash a node, hold it up or be served.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/random.h"
#include "tests/data/transport/cluster_fixture.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using testing::HasSubstr;

// A record with a ClientHello's first bytes.
constexpr std::string_view kCutClientHello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x6f", 12);

class PortScanTest : public testing::TestWithParam<bool> {
 protected:
  PortScanTest() {
    ListenerOptions options;
    options.handshake_timeout = milliseconds(300);
    options.handshakes_max = 64;
    options.handshakes_per_host_max = 64;
    self = GetParam() ? cluster.credentials("node2") : cluster.plain_credentials("node2");
    friendly = GetParam() ? cluster.credentials("node1") : cluster.plain_credentials("node1");
    node.emplace(*self, options);
  }

  /// The node still serves who belongs to it.
  void expect_served() {
    // Strangers whose handshake still runs may fill the limit for a moment.
    auto connection = node->connect(*friendly);
    ASSERT_TRUE(connection.ok()) << connection.status().message();
    expect_echo(std::move(connection).value(), "still here");
  }
  static void send(ByteStream& stream, std::string_view bytes) {
    // The node may have ended the connection already.
    [[maybe_unused]] const Status ignored = stream.write(std::as_bytes(std::span(bytes)), soon());
  }
  /// Waits until the node ends the connection; returns how many bytes it said before.
  static size_t wait_for_end(ByteStream& stream) {
    size_t total = 0;
    for (;;) {
      std::array<std::byte, 4096> bytes;
      const auto count = stream.read_some(bytes, soon());
      EXPECT_TRUE(!count.ok() || count->has_value()) << "the node keeps a stranger";
      if (!count.ok() || count->value_or(0) == 0) return total;
      total += **count;
    }
  }

  const TestCluster cluster;
  std::optional<Credentials> self, friendly;
  std::optional<EchoNode> node;
};

TEST_P(PortScanTest, GarbageIsRefused) {
  const TestSeed seed(1);
  Random random(seed.value());
  const std::string http = "GET / HTTP/1.1\r\nHost: node\r\n\r\n";
  std::vector<std::string> greetings = {
      http,
      "SSH-2.0-OpenSSH_9.2\r\n",
      "\r\n\r\n",
      std::string(1 << 16, '\0'),
      std::string("\x89PERCH\r\n\0\0\0\0", 12),
      "\x89PERCH\n\n",
      "\x89PERCH\r\n\xff\xff\xff\xff",
      "\x89PERCH\r\n" + std::string("\x08\0\0\0", 4) + "garbage!"};
  for (int i = 0; i < 20; ++i) {
    std::string bytes(1 + random.below(2000), '\0');
    for (char& c : bytes) c = static_cast<char>(random.below(256));
    greetings.push_back(std::move(bytes));
  }
  for (const std::string& greeting : greetings) {
    const auto stranger = node->stranger();
    send(*stranger, greeting);
    wait_for_end(*stranger);
  }
  node->refusals.wait_for(greetings.size());
  EXPECT_EQ(node->listener->counts().accepted, 0);
  expect_served();
}

TEST_P(PortScanTest, AStrangerInPlainTextHearsNothing) {
  const auto stranger = node->stranger();
  send(*stranger, "GET / HTTP/1.1\r\nHost: node\r\n\r\n");
  const size_t said = wait_for_end(*stranger);
  EXPECT_LE(said, GetParam() ? 7u : 0u);  // an alert of TLS
}

TEST_P(PortScanTest, AHandshakeCutShortIsGivenUp) {
  for (const bool ends : {true, false}) {
    const auto stranger = node->stranger();
    send(*stranger, kCutClientHello);
    if (ends) stranger->close();
    if (!ends) wait_for_end(*stranger);
  }
  node->refusals.wait_for(2);
  expect_served();
}

// Each byte just before a time-out would start anew: the time is for all of the handshake.
TEST_P(PortScanTest, OneByteAtATimeDoesNotProlongTheHandshake) {
  const std::string slow =
      GetParam() ? std::string(kCutClientHello) + std::string(500, 'x')
                 : "\x89PERCH\r\n" + std::string("\xff\x0f\0\0", 4) + std::string(4000, 'x');
  const auto stranger = node->stranger();
  const auto began = std::chrono::steady_clock::now();
  bool ended = false;
  for (size_t i = 0; i < slow.size() && !ended; ++i) {
    send(*stranger, slow.substr(i, 1));
    std::array<std::byte, 64> bytes;
    // Waits for the end of the connection, no longer than a slow sender would.
    const auto count = stranger->read_some(bytes, Deadline::after(milliseconds(50)));
    ended = !count.ok() || (count->has_value() && **count == 0);
  }
  EXPECT_TRUE(ended);
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(20));
  expect_served();
}

TEST_P(PortScanTest, HalfOpenConnectionsAreGivenUp) {
  std::vector<std::unique_ptr<ByteStream>> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(node->stranger());
  node->refusals.wait_for(10);
  for (const auto& stranger : silent) wait_for_end(*stranger);
  EXPECT_EQ(node->listener->counts().handshakes, 0);
  expect_served();
}

TEST_P(PortScanTest, AThousandConnectionsStayWithinTheLimits) {
  constexpr int kConnections = 1000;
  for (int i = 0; i < kConnections; ++i) {
    const auto stranger = node->stranger();
    if (i % 3 == 0) send(*stranger, "x");
    EXPECT_LE(node->listener->counts().handshakes, 64);
  }
  node->refusals.wait_for(kConnections);
  const ListenerCounts counts = node->listener->counts();
  EXPECT_EQ(counts.refused + counts.over_limit, kConnections);
  EXPECT_EQ(counts.accepted, 0);
  expect_served();
}

TEST_P(PortScanTest, OneHostCannotTakeAllHandshakes) {
  ListenerOptions options;
  options.handshakes_per_host_max = 3;
  options.handshake_timeout = seconds(60);
  EchoNode small(*self, options);
  std::vector<std::unique_ptr<ByteStream>> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(small.stranger());
  EXPECT_THAT(small.refusals.wait_for(1),
              testing::ElementsAre(HasSubstr("3 connections of this host are in their handshake")));
  EXPECT_EQ(small.listener->counts().handshakes, 3);
}

INSTANTIATE_TEST_SUITE_P(With, PortScanTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "PlainText"; });

}  // namespace
}  // namespace percheron

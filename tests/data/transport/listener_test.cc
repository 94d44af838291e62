#include "data/transport/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/data/transport/cluster_fixture.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Listener, ConnectsNodesByTls) {
  const TestCluster cluster;
  const EchoNode node(cluster.credentials("node2"));
  const Credentials one = cluster.credentials("node1");
  for (const char* expected : {"node2", ""}) {
    auto connection = node.connect(one, expected);
    ASSERT_TRUE(connection.ok()) << connection.status().message();
    EXPECT_EQ(connection->peer.name, "node2");
    ASSERT_NE(connection->stream->tls_peer(), nullptr);
    expect_echo(std::move(connection).value(), "text");
  }
}

TEST(Listener, ConnectsNodesInPlainText) {
  const TestCluster cluster;
  EchoNode node(cluster.plain_credentials("node2"));
  auto connection = node.connect(cluster.plain_credentials("node1"));
  ASSERT_TRUE(connection.ok()) << connection.status().message();
  EXPECT_EQ(connection->stream->tls_peer(), nullptr);
  expect_echo(std::move(connection).value(), "text");
  EXPECT_THAT(node.peers.wait_for(1), ElementsAre("node1 for control"));
}

TEST(Listener, TellsItsAddress) {
  const TestCluster cluster;
  ListenerOptions options;
  options.advertised_host = "node2.lab.example";
  const EchoNode node(cluster.plain_credentials("node2"), options);
  EXPECT_EQ(node.address().host, "node2.lab.example");
  EXPECT_NE(node.address().port, 0);
}

TEST(Listener, AnAddressThatIsTakenIsAnError) {
  const TestCluster cluster;
  const EchoNode node(cluster.plain_credentials("node2"));
  ListenerOptions options;
  options.port = node.address().port;
  const auto second = Listener::start(options, cluster.plain_credentials("node3"),
                                      system_random_bytes(), [](Connection) {});
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(),
              AllOf(HasSubstr(node.address().text()), HasSubstr("Address already in use")));
  options = {};
  options.bind_host = "192.0.2.1";  // of nobody: RFC 5737
  EXPECT_THAT(Listener::start(options, cluster.plain_credentials("node3"), system_random_bytes(),
                              [](Connection) {})
                  .status()
                  .message(),
              HasSubstr("192.0.2.1:0"));
}

TEST(Listener, RefusesAWrongSecretOverTls) {
  const TestCluster cluster;
  EchoNode node(cluster.credentials("node2"));
  Credentials stranger = cluster.credentials("node1");
  stranger.secret = ClusterSecret::parse(std::string(40, 'x'), "a test").value();
  const auto connection = node.connect(stranger);
  EXPECT_THAT(connection.status().message(),
              AllOf(HasSubstr(node.address().text() + " refuses the connection"),
                    HasSubstr("secrets of both ends differ")));
  EXPECT_THAT(node.refusals.wait_for(1), ElementsAre(HasSubstr("secrets of both ends differ")));
  EXPECT_EQ(node.listener->counts().refused, 1);
  EXPECT_EQ(node.listener->counts().accepted, 0);
}

TEST(Listener, RefusesANameThatIsNotInTheCertificate) {
  const TestCluster cluster;
  EchoNode node(cluster.credentials("node2"));
  Credentials impostor = cluster.credentials("node1");
  impostor.self.name = "node3";
  EXPECT_THAT(node.connect(impostor).status().message(),
              HasSubstr("calls itself node3, and its certificate is not for that name"));
}

TEST(Listener, AForeignCertificateIsRefusedOnBothSides) {
  const TestCluster cluster, other;
  EchoNode node(cluster.credentials("node2"));
  EXPECT_THAT(node.connect(other.credentials("node1")).status().message(),
              AllOf(HasSubstr(node.address().text()), HasSubstr("was not issued by")));
  EXPECT_THAT(node.refusals.wait_for(1), ElementsAre(HasSubstr("refuses our certificate")));
}

TEST(Listener, PlainTextAgainstTlsIsToldSo) {
  const TestCluster cluster;
  EchoNode node(cluster.credentials("node2"));
  EXPECT_THAT(node.connect(cluster.plain_credentials("node1")).status().message(),
              HasSubstr("refuses the connection: this node wants TLS"));
  EXPECT_THAT(node.refusals.wait_for(1), ElementsAre(HasSubstr("speaks plain text")));
}

TEST(Listener, TlsAgainstPlainTextIsToldSo) {
  const TestCluster cluster;
  EchoNode node(cluster.plain_credentials("node2"));
  EXPECT_THAT(node.connect(cluster.credentials("node1")).status().message(),
              HasSubstr("does not speak TLS; was it started with --insecure?"));
  EXPECT_THAT(node.refusals.wait_for(1),
              ElementsAre(HasSubstr("speaks TLS, and this node was started with --insecure")));
}

TEST(Listener, WhereNobodyListensIsAnError) {
  const TestCluster cluster;
  NodeAddress address;
  {
    const EchoNode node(cluster.plain_credentials("node2"));
    address = node.address();
  }
  const auto connection = connect_node(address, "", cluster.plain_credentials("node1"),
                                       Purpose::kControl, system_random_bytes(), soon());
  EXPECT_EQ(connection.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(connection.status().message(),
              AllOf(HasSubstr(address.text()), HasSubstr("Connection refused")));
}

TEST(Listener, StopEndsConnectionsAndHandshakes) {
  const TestCluster cluster;
  EchoNode node(cluster.credentials("node2"));
  auto connection = node.connect(cluster.credentials("node1"));
  ASSERT_TRUE(connection.ok());
  node.peers.wait_for(1);
  const auto silent = node.stranger();
  node.listener->stop();
  std::array<std::byte, 1> byte;
  const auto end = connection->stream->read_some(byte, soon());
  EXPECT_TRUE(!end.ok() || end->value_or(1) == 0);
  const auto silent_end = silent->read_some(byte, soon());
  EXPECT_TRUE(!silent_end.ok() || silent_end->value_or(1) == 0);
  EXPECT_EQ(node.listener->counts().connections, 0);
  EXPECT_EQ(node.listener->counts().handshakes, 0);
  node.listener->stop();  // once more does no harm
}

TEST(Listener, LimitsItsConnections) {
  const TestCluster cluster;
  ListenerOptions options;
  options.connections_max = 2;
  EchoNode node(cluster.plain_credentials("node2"), options);
  const Credentials one = cluster.plain_credentials("node1");
  auto first = node.connect(one), second = node.connect(one);
  ASSERT_TRUE(first.ok() && second.ok());
  node.peers.wait_for(2);
  EXPECT_EQ(node.connect(one).status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(node.refusals.wait_for(1), ElementsAre(HasSubstr("2 connections are open")));
  EXPECT_EQ(node.listener->counts().over_limit, 1);
  expect_echo(std::move(first).value(), "still served");
}

TEST(NodeAddress, IsParsedAndPrinted) {
  for (const char* text : {"node1:7100", "10.0.0.3:1", "[::1]:65535"}) {
    const auto address = NodeAddress::parse(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->text(), text);
  }
  EXPECT_EQ(NodeAddress::parse("[::1]:7100")->host, "::1");
  for (const char* text : {"", "node1", "node1:", ":7100", "node1:0", "node1:65536", "node1:7x",
                           "::1:7100", "a b:7100", "[node1]:7100", "node1:-1"}) {
    const auto address = NodeAddress::parse(text);
    EXPECT_EQ(address.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(address.status().message(), HasSubstr("host:port"));
  }
}

}  // namespace
}  // namespace percheron

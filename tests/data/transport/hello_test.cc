#include "data/transport/hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "data/transport/frame_length.h"
#include "proto/transport.pb.h"
#include "tests/data/transport/cluster_fixture.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::string_view kMagic = "\x89PERCH\r\n";

std::string framed(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  const auto length = encode_length(bytes.size());
  return std::string(length.begin(), length.end()) + bytes;
}

// Keeps a copy of what is written.
class RecordingStream final : public ByteStream {
 public:
  explicit RecordingStream(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {}
  Result<std::optional<size_t>> read_some(std::span<std::byte> into, Deadline deadline) override {
    return stream_->read_some(into, deadline);
  }
  Status write(std::span<const std::byte> bytes, Deadline deadline) override {
    written.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return stream_->write(bytes, deadline);
  }
  void close() override { stream_->close(); }
  void finish() override { stream_->finish(); }
  std::string peer() const override { return stream_->peer(); }

  std::string written;

 private:
  std::unique_ptr<ByteStream> stream_;
};

// Two plain streams; one answers a hello in a thread.
class HelloTest : public testing::Test {
 protected:
  ~HelloTest() override { wait(); }

  void answer(const Credentials& credentials) {
    wait();
    auto sockets = unix_socket_pair().value();
    connector = socket_stream(std::move(sockets.first), "the acceptor").value();
    acceptor_ = socket_stream(std::move(sockets.second), "the connector").value();
    answering_ = std::thread([this, credentials] {
      answered.emplace(answer_hello(*acceptor_, credentials, system_random_bytes(), soon()));
      acceptor_->close();
    });
  }
  void wait() {
    if (answering_.joinable()) answering_.join();
  }
  Result<NodeIdentity> say(const Credentials& credentials, Purpose purpose = Purpose::kControl) {
    auto result = say_hello(*connector, credentials, purpose, system_random_bytes(), soon());
    wait();
    return result;
  }
  void write(const std::string& bytes) const {
    ASSERT_TRUE(connector->write(std::as_bytes(std::span(bytes)), soon()).ok());
  }
  /// Everything that the acceptor says until it ends the stream.
  std::string read_all() {
    std::string text;
    for (;;) {
      std::array<std::byte, 256> bytes;
      const auto count = connector->read_some(bytes, soon());
      if (!count.ok() || count->value_or(0) == 0) break;
      text.append(reinterpret_cast<const char*>(bytes.data()), **count);
    }
    wait();
    return text;
  }
  proto::Hello valid_hello() const {
    const NodeIdentity self = TestCluster::identity("node1");
    proto::Hello hello;
    hello.set_protocol_version(kProtocolVersion);
    hello.set_build_version("0.1.0");
    hello.mutable_self()->set_name(self.name);
    hello.mutable_self()->set_node_uuid(self.node_uuid);
    hello.mutable_self()->set_incarnation_uuid(self.incarnation_uuid);
    hello.set_nonce(std::string(32, 'n'));
    hello.set_purpose(proto::Hello::CONTROL);
    return hello;
  }

  const TestCluster cluster;
  std::unique_ptr<ByteStream> connector;
  std::optional<Result<HelloAnswer>> answered;

 private:
  std::unique_ptr<ByteStream> acceptor_;
  std::thread answering_;
};

TEST_F(HelloTest, BothEndsLearnWhoTheOtherIs) {
  const Credentials one = cluster.plain_credentials("node1"),
                    two = cluster.plain_credentials("node2");
  answer(two);
  const auto peer = say(one, Purpose::kBulk);
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  EXPECT_EQ(*peer, two.self);
  ASSERT_TRUE(answered->ok()) << answered->status().message();
  EXPECT_EQ((*answered)->peer, one.self);
  EXPECT_EQ((*answered)->purpose, Purpose::kBulk);
}

TEST_F(HelloTest, AnotherSecretIsRefusedOnBothSides) {
  Credentials stranger = cluster.plain_credentials("node1");
  stranger.secret = ClusterSecret::parse(std::string(40, 'x'), "a test").value();
  answer(cluster.plain_credentials("node2"));
  const auto peer = say(stranger);
  EXPECT_EQ(peer.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(peer.status().message(),
              AllOf(HasSubstr("refuses the connection"), HasSubstr("secrets of both ends differ")));
  EXPECT_THAT(answered->status().message(), HasSubstr("secrets of both ends differ"));
}

TEST_F(HelloTest, AnotherVersionIsRefusedInWords) {
  answer(cluster.plain_credentials("node2"));
  proto::Hello hello = valid_hello();
  hello.set_protocol_version(kProtocolVersion + 1);
  hello.set_build_version("9.9.9");
  write(std::string(kMagic) + framed(hello));
  EXPECT_THAT(read_all(), HasSubstr("install the same Percheron on both"));
  EXPECT_THAT(answered->status().message(),
              AllOf(HasSubstr("9.9.9) speaks protocol version 2"), HasSubstr("0.1.0) version 1")));
}

// A whole conversation, sent once more to the same node: its nonce is another one.
TEST_F(HelloTest, AReplayedHelloIsRefused) {
  const Credentials one = cluster.plain_credentials("node1"),
                    two = cluster.plain_credentials("node2");
  answer(two);
  auto recorded = std::make_unique<RecordingStream>(std::move(connector));
  RecordingStream* record = recorded.get();
  connector = std::move(recorded);
  ASSERT_TRUE(say(one).ok());
  ASSERT_TRUE(answered->ok());
  const std::string conversation = record->written;

  answer(two);
  write(conversation);
  EXPECT_THAT(read_all(), HasSubstr("secrets of both ends differ"));
  EXPECT_EQ(answered->status().code(), StatusCode::kFailedPrecondition);
}

// An acceptor without the secret that sends the connector's own proof back.
TEST_F(HelloTest, AReflectedProofIsRefused) {
  auto sockets = unix_socket_pair().value();
  connector = socket_stream(std::move(sockets.first), "the acceptor").value();
  const auto impostor = socket_stream(std::move(sockets.second), "the connector").value();
  std::thread reflecting([&] {
    std::string start(kMagic.size(), '\0'), length(kLengthBytes, '\0');
    const auto read = [&](std::string& bytes) {
      return read_exactly(*impostor, std::as_writable_bytes(std::span(bytes)), soon()).ok();
    };
    const auto read_frame = [&](std::string& bytes) {
      if (!read(length)) return false;
      bytes.resize(decode_length(std::span<const char, kLengthBytes>(length.data(), kLengthBytes)));
      return read(bytes);
    };
    std::string hello_bytes, proof_bytes;
    ASSERT_TRUE(read(start) && read_frame(hello_bytes));
    proto::Hello hello;
    ASSERT_TRUE(hello.ParseFromString(hello_bytes));
    proto::HelloReply reply;
    *reply.mutable_challenge()->mutable_self() = hello.self();
    reply.mutable_challenge()->set_protocol_version(hello.protocol_version());
    reply.mutable_challenge()->set_nonce(hello.nonce());
    const std::string challenge = std::string(kMagic) + framed(reply);
    ASSERT_TRUE(impostor->write(std::as_bytes(std::span(challenge)), soon()).ok());
    ASSERT_TRUE(read_frame(proof_bytes));
    proto::Proof proof;
    ASSERT_TRUE(proof.ParseFromString(proof_bytes));
    proto::HelloReply welcome;
    welcome.mutable_welcome()->set_hmac(proof.hmac());
    const std::string answer = framed(welcome);
    ASSERT_TRUE(impostor->write(std::as_bytes(std::span(answer)), soon()).ok());
  });
  const auto peer = say_hello(*connector, cluster.plain_credentials("node1"), Purpose::kControl,
                              system_random_bytes(), soon());
  reflecting.join();
  EXPECT_EQ(peer.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(peer.status().message(), HasSubstr("secrets of both ends differ"));
}

TEST_F(HelloTest, TheSecretNeverTravels) {
  const Credentials one = cluster.plain_credentials("node1");
  const std::string secret =
      system_files().read_text(CertificateFiles::secret(cluster.path())).value();
  answer(cluster.plain_credentials("node2"));
  auto recorded = std::make_unique<RecordingStream>(std::move(connector));
  RecordingStream* record = recorded.get();
  connector = std::move(recorded);
  ASSERT_TRUE(say(one).ok());
  EXPECT_THAT(record->written, Not(HasSubstr(secret.substr(0, 16))));
}

TEST_F(HelloTest, WhatLacksAPartIsRefusedWithoutAnAnswer) {
  const std::function<void(proto::Hello&)> damages[] = {
      [](proto::Hello& hello) { hello.mutable_self()->set_name("a\nb"); },
      [](proto::Hello& hello) { hello.mutable_self()->set_name(""); },
      [](proto::Hello& hello) { hello.mutable_self()->set_node_uuid("1"); },
      [](proto::Hello& hello) { hello.mutable_self()->clear_incarnation_uuid(); },
      [](proto::Hello& hello) { hello.set_nonce("short"); },
      [](proto::Hello& hello) { hello.clear_purpose(); },
  };
  for (const auto& damage : damages) {
    answer(cluster.plain_credentials("node2"));
    proto::Hello hello = valid_hello();
    damage(hello);
    write(std::string(kMagic) + framed(hello));
    EXPECT_EQ(read_all(), "");
    EXPECT_EQ(answered->status().code(), StatusCode::kDataLoss);
  }
}

TEST_F(HelloTest, AnOversizedHelloIsRefusedByItsLength) {
  answer(cluster.plain_credentials("node2"));
  write(std::string(kMagic) + std::string("\xff\xff\xff\x7f", 4));
  EXPECT_EQ(read_all(), "");
  EXPECT_THAT(answered->status().message(), HasSubstr("2147483647 bytes; the limit is 4096"));
}

// Nothing that a stranger sends may reach a terminal or a log as it is.
TEST_F(HelloTest, TheWordsOfAStrangerAreMadePrintable) {
  auto sockets = unix_socket_pair().value();
  connector = socket_stream(std::move(sockets.first), "the acceptor").value();
  const auto stranger = socket_stream(std::move(sockets.second), "x").value();
  proto::HelloReply reply;
  reply.mutable_refusal()->set_reason("go away\x1b[2J\n" + std::string(2000, 'x'));
  const std::string bytes = std::string(kMagic) + framed(reply);
  ASSERT_TRUE(stranger->write(std::as_bytes(std::span(bytes)), soon()).ok());
  const auto peer = say(cluster.plain_credentials("node1"));
  EXPECT_THAT(peer.status().message(), AllOf(HasSubstr("go away?[2J?xxx"), Not(HasSubstr("\n"))));
  EXPECT_LT(peer.status().message().size(), 500u);
}

TEST_F(HelloTest, ASilentPeerIsGivenUp) {
  auto sockets = unix_socket_pair().value();
  connector = socket_stream(std::move(sockets.first), "the acceptor").value();
  const auto peer = say_hello(*connector, cluster.plain_credentials("node1"), Purpose::kCli,
                              system_random_bytes(), Deadline::after(milliseconds(20)));
  EXPECT_EQ(peer.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(peer.status().message(), HasSubstr("did not answer in time"));
}

}  // namespace
}  // namespace percheron

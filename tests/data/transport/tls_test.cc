#include "data/transport/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/data/transport/cluster_fixture.h"

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string load_error(const TlsFiles& files, const Clock& clock = TestCluster::clock()) {
  return TlsContext::load(system_files(), files, clock).status().message();
}

void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(TlsContext, NamesTheFileThatIsMissing) {
  const TestCluster cluster;
  cluster.issue("node1");
  for (const auto member : {&TlsFiles::ca, &TlsFiles::certificate, &TlsFiles::key}) {
    TlsFiles files = cluster.files("node1");
    files.*member = cluster.path() + "/nothing";
    EXPECT_THAT(load_error(files), HasSubstr(cluster.path() + "/nothing"));
  }
}

TEST(TlsContext, NamesTheFileThatIsNoPem) {
  const TestCluster cluster;
  cluster.issue("node1");
  write_file(cluster.path() + "/text", "hello\n");
  TlsFiles files = cluster.files("node1");
  files.ca = cluster.path() + "/text";
  EXPECT_THAT(load_error(files), HasSubstr("/text holds no certificate in PEM"));
  files = cluster.files("node1");
  files.certificate = cluster.path() + "/text";
  EXPECT_THAT(load_error(files), HasSubstr("/text holds no certificate in PEM"));
  files = cluster.files("node1");
  files.key = cluster.path() + "/text";
  EXPECT_THAT(load_error(files), HasSubstr("/text holds no private key in PEM"));
}

TEST(TlsContext, ADamagedCertificateIsRefused) {
  const TestCluster cluster;
  cluster.issue("node1");
  std::string text = *system_files().read_text(cluster.files("node1").certificate);
  text[text.size() / 2] = text[text.size() / 2] == 'A' ? 'B' : 'A';
  write_file(cluster.files("node1").certificate, text);
  EXPECT_THAT(load_error(cluster.files("node1")), HasSubstr("node1.crt"));
}

TEST(TlsContext, AKeyWithAPassPhraseIsRefused) {
  const TestCluster cluster;
  cluster.issue("node1");
  write_file(cluster.files("node1").key,
             "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIBHDBXBgkqhkiG9w0BBQ0wSjApBgkq\n"
             "-----END ENCRYPTED PRIVATE KEY-----\n");
  EXPECT_THAT(load_error(cluster.files("node1")), HasSubstr("node1.key is protected by a pass"));
}

TEST(TlsContext, AKeyOfAnotherCertificateIsRefused) {
  const TestCluster cluster;
  cluster.issue("node1");
  cluster.issue("node2");
  TlsFiles files = cluster.files("node1");
  files.key = cluster.files("node2").key;
  EXPECT_THAT(load_error(files),
              AllOf(HasSubstr("node2.key does not belong to"), HasSubstr("node1.crt")));
}

TEST(TlsContext, ACertificateOfAnotherAuthorityIsRefused) {
  const TestCluster cluster, other;
  cluster.issue("node1");
  TlsFiles files = cluster.files("node1");
  files.ca = other.files("node1").ca;
  EXPECT_THAT(load_error(files), AllOf(HasSubstr("node1.crt was not issued by the authority in"),
                                       HasSubstr(files.ca)));
}

TEST(TlsContext, AnExpiredOrFutureCertificateIsRefused) {
  const TestCluster cluster;
  cluster.issue("node1", 10);
  const FakeClock later(kToday + 11 * kDay), earlier(kToday - kDay);
  EXPECT_THAT(load_error(cluster.files("node1"), later),
              AllOf(HasSubstr("node1.crt expired on 2030-01-11"), HasSubstr("percheron certs")));
  EXPECT_THAT(load_error(cluster.files("node1"), earlier), HasSubstr("is valid only from"));
}

// Both ends of a handshake over a socket pair.
struct Handshake {
  Handshake(const TlsContext& connector, const TlsContext& acceptor, const std::string& expected) {
    auto sockets = unix_socket_pair().value();
    std::thread other([&, socket = std::move(sockets.second)]() mutable {
      auto stream = acceptor.accept(std::move(socket), "the connector", soon());
      accept_error = stream.status().message();
      if (!stream.ok()) return;
      accepted = std::move(stream).value();
      const std::string greeting = "hello";
      EXPECT_TRUE(accepted->write(std::as_bytes(std::span(greeting)), soon()).ok());
    });
    auto stream = connector.connect(std::move(sockets.first), "the acceptor", expected, soon());
    connect_error = stream.status().message();
    if (stream.ok()) {
      connected = std::move(stream).value();
      // Only here does a connector of TLS 1.3 learn that its own certificate is refused.
      std::array<std::byte, 5> greeting;
      connect_error = read_exactly(*connected, greeting, soon()).message();
    }
    other.join();
  }

  std::string connect_error, accept_error;
  std::unique_ptr<ByteStream> connected, accepted;
};

TEST(Tls, BothEndsKnowEachOther) {
  const TestCluster cluster;
  cluster.issue("node1");
  cluster.issue("node2");
  const Handshake done(*cluster.tls("node1"), *cluster.tls("node2"), "node2");
  EXPECT_EQ(done.connect_error, "");
  EXPECT_EQ(done.accept_error, "");
  ASSERT_TRUE(done.connected && done.accepted);
  EXPECT_TRUE(done.connected->tls_peer()->has_name("node2"));
  EXPECT_TRUE(done.accepted->tls_peer()->has_name("node1"));
  EXPECT_FALSE(done.accepted->tls_peer()->has_name("node2"));
  EXPECT_EQ(done.connected->tls_peer()->channel_binding,
            done.accepted->tls_peer()->channel_binding);
  const Handshake again(*cluster.tls("node1"), *cluster.tls("node2"), "127.0.0.1");
  ASSERT_TRUE(again.connected);
  EXPECT_NE(done.connected->tls_peer()->channel_binding,
            again.connected->tls_peer()->channel_binding);
}

TEST(Tls, AnotherNameThanExpectedIsRefused) {
  const TestCluster cluster;
  cluster.issue("node1");
  cluster.issue("node2");
  for (const char* expected : {"node3", "10.9.9.9"}) {
    const Handshake done(*cluster.tls("node1"), *cluster.tls("node2"), expected);
    EXPECT_THAT(done.connect_error,
                AllOf(HasSubstr("the certificate of the acceptor is for node2, 127.0.0.1"),
                      HasSubstr("not for " + std::string(expected))));
    EXPECT_NE(done.accept_error, "");
  }
}

TEST(Tls, AWrongAuthorityIsRefusedOnBothSides) {
  const TestCluster cluster, other;
  cluster.issue("node1");
  other.issue("node2");
  const Handshake done(*cluster.tls("node1"), *other.tls("node2"), "node2");
  EXPECT_THAT(done.connect_error, HasSubstr("the certificate of the acceptor was not issued by"));
  EXPECT_THAT(done.accept_error,
              AllOf(HasSubstr("the connector refuses our certificate"), HasSubstr("node2.crt")));
}

TEST(Tls, AnAcceptorRefusesAForeignConnectorAndSaysSo) {
  const TestCluster cluster, other;
  cluster.issue("node2");
  other.issue("node1");
  // A connector that trusts the acceptor's authority, and shows a certificate of its own.
  TlsFiles files = other.files("node1");
  std::ofstream(other.path() + "/both.crt") << *system_files().read_text(cluster.files("node2").ca)
                                            << *system_files().read_text(files.ca);
  files.ca = other.path() + "/both.crt";
  const auto connector = TlsContext::load(system_files(), files, TestCluster::clock());
  ASSERT_TRUE(connector.ok()) << connector.status().message();
  const Handshake done(**connector, *cluster.tls("node2"), "node2");
  EXPECT_THAT(done.accept_error, HasSubstr("the certificate of the connector was not issued by"));
  EXPECT_THAT(done.connect_error,
              AllOf(HasSubstr("the acceptor refuses our certificate"), HasSubstr("node1.crt")));
}

// The acceptor's clock is ahead: there the connector's certificate has expired.
TEST(Tls, AnExpiredCertificateOfAPeerIsRefusedWithItsDate) {
  const TestCluster cluster;
  cluster.issue("node1", 10);
  cluster.issue("node2", 100);
  const FakeClock later(kToday + 20 * kDay);
  const auto ahead = TlsContext::load(system_files(), cluster.files("node2"), later);
  ASSERT_TRUE(ahead.ok()) << ahead.status().message();
  const Handshake done(*cluster.tls("node1"), **ahead, "node2");
  EXPECT_THAT(done.accept_error,
              HasSubstr("the certificate of the connector expired on 2030-01-11"));
  EXPECT_THAT(done.connect_error, HasSubstr("it has expired"));
}

TEST(Tls, APeerWithoutTlsIsNamed) {
  const TestCluster cluster;
  cluster.issue("node1");
  auto sockets = unix_socket_pair().value();
  const auto plain = socket_stream(std::move(sockets.second), "the connector").value();
  const std::string text = "220 mail.example ESMTP ready\r\n";
  ASSERT_TRUE(plain->write(std::as_bytes(std::span(text)), soon()).ok());
  const auto stream = cluster.tls("node1")->connect(std::move(sockets.first), "mail.example:25",
                                                    "mail.example", soon());
  EXPECT_EQ(stream.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(stream.status().message(), HasSubstr("mail.example:25 does not speak TLS"));
}

TEST(Tls, AHandshakeThatDoesNotEndIsGivenUp) {
  const TestCluster cluster;
  cluster.issue("node1");
  auto sockets = unix_socket_pair().value();
  const auto stream = cluster.tls("node1")->accept(std::move(sockets.first), "a silent peer",
                                                   Deadline::after(milliseconds(20)));
  EXPECT_EQ(stream.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(stream.status().message(), HasSubstr("did not finish the TLS handshake in time"));
}

// Frames both ways at once, by two threads at each end.
TEST(Tls, CarriesFramesBothWaysAtOnce) {
  const TestCluster cluster;
  cluster.issue("node1");
  cluster.issue("node2");
  Handshake done(*cluster.tls("node1"), *cluster.tls("node2"), "node2");
  ASSERT_TRUE(done.connected && done.accepted);
  const auto one = stream_channel(std::move(done.connected));
  const auto two = stream_channel(std::move(done.accepted));
  const auto send_all = [](FrameChannel& channel) {
    for (size_t i = 0; i < 60; ++i) {
      ASSERT_TRUE(channel.send(std::string(i * 5000, 'x'), soon()).ok());
    }
  };
  const auto receive_all = [](FrameChannel& channel) {
    for (size_t i = 0; i < 60; ++i) {
      const auto frame = channel.receive(soon());
      ASSERT_TRUE(frame.ok() && frame->has_value());
      ASSERT_EQ((*frame)->bytes.size(), i * 5000);
    }
  };
  std::thread threads[] = {std::thread([&] { send_all(*one); }),
                           std::thread([&] { send_all(*two); }),
                           std::thread([&] { receive_all(*one); })};
  receive_all(*two);
  for (std::thread& thread : threads) thread.join();
}

TEST(Tls, CloseWakesAReader) {
  const TestCluster cluster;
  cluster.issue("node1");
  cluster.issue("node2");
  Handshake done(*cluster.tls("node1"), *cluster.tls("node2"), "node2");
  ASSERT_TRUE(done.connected && done.accepted);
  std::thread reader([&] {
    std::array<std::byte, 1> byte;
    EXPECT_EQ(done.connected->read_some(byte, Deadline::never()).status().code(),
              StatusCode::kCancelled);
  });
  done.connected->close();
  reader.join();
  std::array<std::byte, 1> byte;
  const auto end = done.accepted->read_some(byte, soon());
  EXPECT_TRUE(!end.ok() || end->value_or(1) == 0);
}

}  // namespace
}  // namespace percheron

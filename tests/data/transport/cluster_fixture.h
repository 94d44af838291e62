#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "data/transport/certificates.h"
#include "data/transport/connect.h"
#include "data/transport/frame_channel.h"
#include "data/transport/listener.h"
#include "tests/base/fake_clock.h"
#include "tests/data/transport/temporary_directory.h"

namespace percheron {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Long enough for a loaded machine; only a failing test waits that long.
inline Deadline soon() { return Deadline::after(seconds(60)); }

/// A fixed date, so that no test depends on today's: 2030-01-01.
constexpr double kToday = 1893456000;
constexpr double kDay = 86400;

/// A directory with an authority, certificates and a secret.
class TestCluster {
 public:
  TestCluster() {
    EXPECT_TRUE(
        init_certificates(system_files(), path(), 1000, clock(), system_random_bytes()).ok());
  }

  const std::string& path() const { return directory_.path(); }
  static const Clock& clock() {
    static const FakeClock today(kToday);
    return today;
  }

  /// Issues a certificate for `name` and 127.0.0.1.
  void issue(const std::string& name, int days = 100, const Clock& now = clock()) const {
    const Status status =
        issue_certificate(system_files(), path(), {name, {"127.0.0.1"}, days}, now);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  TlsFiles files(const std::string& name) const {
    return {CertificateFiles::ca(path()), CertificateFiles::certificate(path(), name),
            CertificateFiles::key(path(), name)};
  }
  std::shared_ptr<const TlsContext> tls(const std::string& name) const {
    auto context = TlsContext::load(system_files(), files(name), clock());
    EXPECT_TRUE(context.ok()) << context.status().message();
    return context.ok() ? *context : nullptr;
  }
  ClusterSecret secret() const {
    return ClusterSecret::read(system_files(), CertificateFiles::secret(path())).value();
  }

  /// Of a new node, with TLS.
  Credentials credentials(const std::string& name) const {
    issue(name);
    Credentials credentials = plain_credentials(name);
    credentials.tls = tls(name);
    return credentials;
  }
  Credentials plain_credentials(const std::string& name) const {
    return {identity(name), secret(), nullptr};
  }
  static NodeIdentity identity(const std::string& name) {
    return {name, make_uuid(system_random_bytes()), make_uuid(system_random_bytes()), "0.1.0"};
  }

 private:
  TemporaryDirectory directory_;
};

/// Collects what happens in other threads.
template <class T>
class Collected {
 public:
  void add(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_all();
  }
  /// The first `count`, once they are there.
  std::vector<T> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, seconds(60), [&] { return values_.size() >= count; });
    EXPECT_TRUE(came) << "only " << values_.size() << " of " << count << " came";
    return values_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> values_;
};

/// A listener whose connections send back every frame, and that keeps the reasons of refusals.
class EchoNode {
 public:
  explicit EchoNode(const Credentials& credentials, const ListenerOptions& options = {}) {
    auto listener = Listener::start(
        options, credentials, system_random_bytes(),
        [this](Connection connection) {
          peers.add(connection.peer.name + " for " + std::string(purpose_name(connection.purpose)));
          const auto channel = stream_channel(std::move(connection.stream));
          for (;;) {
            auto frame = channel->receive(soon());
            if (!frame.ok() || !frame->has_value()) return;
            if (!channel->send((*frame)->bytes, soon()).ok()) return;
          }
        },
        [this](const std::string&, const Status& why) { refusals.add(why.message()); });
    EXPECT_TRUE(listener.ok()) << listener.status().message();
    if (listener.ok()) this->listener = std::move(listener).value();
  }

  NodeAddress address() const { return listener->advertised(); }
  Result<Connection> connect(const Credentials& credentials, const std::string& name = "") const {
    return connect_node(address(), name, credentials, Purpose::kControl, system_random_bytes(),
                        soon());
  }
  /// A bare TCP connection, as a stranger makes it.
  std::unique_ptr<ByteStream> stranger() const {
    auto socket = connect_tcp(address(), soon());
    EXPECT_TRUE(socket.ok()) << socket.status().message();
    return socket_stream(std::move(socket).value(), address().text()).value();
  }

  Collected<std::string> peers, refusals;
  std::unique_ptr<Listener> listener;  // last: it ends before what its threads use
};

/// Whether a frame comes back as it was sent.
inline void expect_echo(Connection connection, const std::string& text) {
  const auto channel = stream_channel(std::move(connection.stream));
  ASSERT_TRUE(channel->send(text, soon()).ok());
  auto frame = channel->receive(soon());
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  ASSERT_TRUE(frame->has_value());
  EXPECT_EQ((*frame)->bytes, text);
}

}  // namespace percheron

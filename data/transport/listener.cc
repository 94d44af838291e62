#include "data/transport/listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <list>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "data/transport/refusal_log.h"
#include "data/transport/socket_wait.h"
#include "data/transport/tcp_socket.h"

namespace percheron {
namespace {

constexpr int kBacklog = 1024;  // connections that the kernel keeps for us
// How long to wait when the process has no descriptors left: others have to end first.
constexpr int kPauseMs = 100;

class TcpListener final : public Listener {
 public:
  TcpListener(const ListenerOptions& options, const Credentials& credentials, RandomBytes& random,
              Serve serve, OnRefused on_refused, FileDescriptor socket, FileDescriptor wake,
              uint16_t port)
      : options_(options),
        credentials_(credentials),
        random_(random),
        serve_(std::move(serve)),
        on_refused_(std::move(on_refused)),
        socket_(std::move(socket)),
        wake_(std::move(wake)),
        port_(port),
        accept_thread_([this] { accept_all(); }) {}
  ~TcpListener() override { TcpListener::stop(); }

  NodeAddress advertised() const override {
    return {options_.advertised_host.empty() ? options_.bind_host : options_.advertised_host,
            port_};
  }

  ListenerCounts counts() const override {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

  void stop() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (const Peer& peer : peers_) ::shutdown(peer.handle.get(), SHUT_RDWR);
    }
    ::eventfd_write(wake_.get(), 1);
    const std::lock_guard lock(stop_mutex_);
    if (accept_thread_.joinable()) accept_thread_.join();
    join(Which::kAll);
    socket_.reset();  // also refuses what the kernel still keeps for us
  }

 private:
  // A connection and its thread.
  struct Peer {
    std::string name;  // for messages
    std::string host;
    FileDescriptor handle;  // a copy of the socket's, by which stop() ends it
    bool done = false;
    std::thread thread;
  };
  enum class Which { kDone, kAll };

  void accept_all() {
    for (;;) {
      pollfd waits[] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      ::poll(waits, 2, -1);
      if (stopping()) return;
      join(Which::kDone);
      Result<AcceptedSocket> accepted = accept_tcp(socket_);
      if (!accepted.ok()) {
        refused("a peer", accepted.status());
        ::poll(&waits[1], 1, kPauseMs);
      } else if (accepted->socket.valid()) {
        admit(std::move(accepted).value());
      }
    }
  }

  // Starts the thread of a connection if the limits allow.
  void admit(AcceptedSocket accepted) {
    const std::string name = accepted.peer.text();
    Result<FileDescriptor> handle = accepted.socket.duplicate();
    Status status = handle.status();
    if (status.ok()) status = enter(accepted.peer.host);
    if (!status.ok()) {
      count_over_limit();
      refused(name, status);
      return;
    }
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_.emplace_back();
    peer.name = name;
    peer.host = accepted.peer.host;
    peer.handle = std::move(handle).value();
    // stop() has gone through the list if it came first.
    if (stopping_) ::shutdown(peer.handle.get(), SHUT_RDWR);
    try {
      peer.thread = std::thread([this, &peer, socket = std::move(accepted.socket)]() mutable {
        serve_peer(peer, std::move(socket));
      });
    } catch (const std::system_error& error) {
      leave_handshake(peer.host);
      peers_.pop_back();
      ++counts_.over_limit;
      log_.add(name, resource_exhausted(std::string("no thread for it: ") + error.what()));
    }
  }

  // Counts a handshake of `host`, unless a limit is reached.
  Status enter(const std::string& host) {
    const std::lock_guard lock(mutex_);
    if (counts_.connections >= options_.connections_max) return too_many_connections();
    if (counts_.handshakes >= options_.handshakes_max) {
      return resource_exhausted(std::to_string(options_.handshakes_max) +
                                " connections are in their handshake, which is the limit");
    }
    const auto found = handshakes_by_host_.find(host);
    if (found != handshakes_by_host_.end() && found->second >= options_.handshakes_per_host_max) {
      return resource_exhausted(std::to_string(options_.handshakes_per_host_max) +
                                " connections of this host are in their handshake, which is the "
                                "limit");
    }
    ++handshakes_by_host_[host];
    ++counts_.handshakes;
    return ok_status();
  }

  Status too_many_connections() const {
    return resource_exhausted(std::to_string(options_.connections_max) +
                              " connections are open, which is the limit");
  }

  // With mutex_.
  void leave_handshake(const std::string& host) {
    --counts_.handshakes;
    const auto found = handshakes_by_host_.find(host);
    if (--found->second == 0) handshakes_by_host_.erase(found);
  }

  void serve_peer(Peer& peer, FileDescriptor socket) {
    Result<Connection> connection = shake_hands(std::move(socket), peer.name);
    const Status status = take_over(peer, connection.status());
    if (status.ok()) {
      serve_(std::move(connection).value());
    } else {
      refused(peer.name, status);
    }
    const std::lock_guard lock(mutex_);
    if (status.ok()) --counts_.connections;
    ::shutdown(peer.handle.get(), SHUT_RDWR);
    peer.handle.reset();
    peer.done = true;
  }

  // From a handshake, with its outcome, to a connection.
  Status take_over(const Peer& peer, const Status& handshake) {
    const std::lock_guard lock(mutex_);
    leave_handshake(peer.host);
    if (!handshake.ok()) {
      ++counts_.refused;
      return handshake;
    }
    if (counts_.connections >= options_.connections_max) {
      ++counts_.over_limit;
      return too_many_connections();
    }
    ++counts_.connections;
    ++counts_.accepted;
    return ok_status();
  }

  Result<Connection> shake_hands(FileDescriptor socket, const std::string& name) {
    const Deadline deadline = Deadline::after(options_.handshake_timeout);
    Connection connection;
    if (credentials_.tls == nullptr) {
      PERCHERON_ASSIGN_OR_RETURN(connection.stream, socket_stream(std::move(socket), name));
    } else {
      PERCHERON_RETURN_IF_ERROR(refuse_plain_text(socket, name, deadline));
      PERCHERON_ASSIGN_OR_RETURN(connection.stream,
                                 credentials_.tls->accept(std::move(socket), name, deadline));
    }
    PERCHERON_ASSIGN_OR_RETURN(HelloAnswer answer,
                               answer_hello(*connection.stream, credentials_, random_, deadline));
    connection.peer = std::move(answer.peer);
    connection.purpose = answer.purpose;
    return connection;
  }

  // Tells a Percheron without TLS that this node wants it; ok for everybody else.
  static Status refuse_plain_text(FileDescriptor& socket, const std::string& name,
                                  Deadline deadline) {
    PERCHERON_ASSIGN_OR_RETURN(const bool ready,
                               wait_ready(socket.get(), Readiness::kRead, deadline));
    if (!ready) return unavailable(name + " said nothing in time");
    unsigned char first = 0;
    if (::recv(socket.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1 || first != kHelloFirstByte) {
      return ok_status();
    }
    PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> stream,
                               socket_stream(std::move(socket), name));
    refuse_hello(*stream, "this node wants TLS, and the connection came in plain text", deadline);
    return failed_precondition(name + " speaks plain text; this node wants TLS");
  }

  void count_over_limit() {
    const std::lock_guard lock(mutex_);
    ++counts_.over_limit;
  }

  void refused(const std::string& peer, const Status& why) {
    if (stopping()) return;  // These are the ones that stop() ends.
    log_.add(peer, why);
    if (on_refused_ != nullptr) on_refused_(peer, why);
  }

  bool stopping() const {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  // Waits for threads, which need mutex_ to end.
  void join(Which which) {
    std::list<Peer> ended;
    {
      const std::lock_guard lock(mutex_);
      for (auto at = peers_.begin(); at != peers_.end();) {
        const auto peer = at++;
        if (which == Which::kAll || peer->done) ended.splice(ended.end(), peers_, peer);
      }
    }
    for (Peer& peer : ended) peer.thread.join();
  }

  const ListenerOptions options_;
  const Credentials credentials_;
  RandomBytes& random_;
  const Serve serve_;
  const OnRefused on_refused_;
  FileDescriptor socket_;
  const FileDescriptor wake_;
  const uint16_t port_;
  RefusalLog log_{system_clock()};
  mutable std::mutex mutex_;
  bool stopping_ = false;
  ListenerCounts counts_;
  std::map<std::string, int> handshakes_by_host_;
  std::list<Peer> peers_;
  std::mutex stop_mutex_;      // stop() may be called by several threads
  std::thread accept_thread_;  // last: it uses the others
};

Status check(const ListenerOptions& options) {
  if (options.connections_max > 0 && options.handshakes_max > 0 &&
      options.handshakes_per_host_max > 0 && options.handshake_timeout.count() > 0) {
    return ok_status();
  }
  return invalid_argument("a listener's limits and its handshake time must be above 0");
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::start(const ListenerOptions& options,
                                                  const Credentials& credentials,
                                                  RandomBytes& random, Serve serve,
                                                  OnRefused on_refused) {
  PERCHERON_RETURN_IF_ERROR(check(options));
  PERCHERON_ASSIGN_OR_RETURN(FileDescriptor socket,
                             listen_tcp({options.bind_host, options.port}, kBacklog));
  PERCHERON_ASSIGN_OR_RETURN(const uint16_t port, local_port(socket));
  FileDescriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return os_error("make a listener", errno);
  return std::unique_ptr<Listener>(std::make_unique<TcpListener>(
      options, credentials, random, std::move(serve), std::move(on_refused), std::move(socket),
      std::move(wake), port));
}

}  // namespace percheron

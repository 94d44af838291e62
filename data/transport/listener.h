#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "data/transport/connect.h"
#include "data/transport/hello.h"

namespace percheron {

struct ListenerOptions {
  std::string bind_host = "127.0.0.1";
  uint16_t port = 0;            // 0: one that is free
  std::string advertised_host;  // by which others reach this node; default: bind_host
  int connections_max = 256;    // authenticated ones
  int handshakes_max = 64;      // not yet authenticated ones
  int handshakes_per_host_max = 16;
  std::chrono::milliseconds handshake_timeout{5000};  // for TLS and hello together
};

/// What came to a port so far.
struct ListenerCounts {
  int64_t accepted = 0;    // authenticated
  int64_t refused = 0;     // failed in the handshake
  int64_t over_limit = 0;  // closed at once, because a limit was reached
  int handshakes = 0;      // under way
  int connections = 0;     // authenticated and still open
};

/// A node's port. Each connection has a thread of its own, which does the handshake and, once the
/// peer is known, calls `serve`; the connection ends when `serve` returns. Nothing of a peer that
/// is not authenticated is read but TLS and the hello. Refusals are logged, at most a few a minute,
/// and counted. All methods are thread-safe.
class Listener {
 public:
  /// Owns the connection; runs on its thread and may take as long as the connection lives. stop()
  /// closes the stream under it. Must not throw.
  using Serve = std::function<void(Connection)>;
  /// Told why a peer was refused; any thread. May be null.
  using OnRefused = std::function<void(const std::string& peer, const Status& why)>;

  /// Binds and begins to accept. kFailedPrecondition, naming the address, when it is taken or not
  /// this machine's. `credentials` is copied, `random` borrowed.
  static Result<std::unique_ptr<Listener>> start(const ListenerOptions& options,
                                                 const Credentials& credentials,
                                                 RandomBytes& random, Serve serve,
                                                 OnRefused on_refused = nullptr);
  virtual ~Listener() = default;  // as stop()

  /// The address that others use, with the port that was bound.
  virtual NodeAddress advertised() const = 0;
  virtual ListenerCounts counts() const = 0;
  /// Takes no more connections, closes the streams of all, waits for their threads. Not from within
  /// `serve`.
  virtual void stop() = 0;
};

}  // namespace percheron

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace percheron {

/// Where metrics are served.
struct MetricsAddress {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any that is free

  /// Only programs of this machine can connect.
  bool loopback() const;
};

/// "9464", ":9464", "0.0.0.0:9464", "[::1]:9464": a port, with the IP address of this machine to
/// listen on; loopback without one. kInvalidArgument for anything else.
Result<MetricsAddress> parse_metrics_address(std::string_view text);

/// What a server answers with. Called on the server's threads, must not block for long.
struct MetricsAnswers {
  std::function<std::string()> page;           // of /metrics
  std::function<bool()> alive, ready;          // of /healthz, /readyz: 200 or 503
  std::function<std::string()> state;          // one word, which these two say
  std::function<std::string()> run = nullptr;  // of /run, as JSON; null: there is no such page
};

/// Serves /metrics, /run, /healthz and /readyz over HTTP, GET and HEAD alone, on two threads of its
/// own. No encryption and no password: metrics name devices and the run, never data.
class MetricsServer {
 public:
  /// kUnavailable names the address that can't be listened on.
  static Result<std::unique_ptr<MetricsServer>> start(const MetricsAddress& address,
                                                      MetricsAnswers answers);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  /// "127.0.0.1:9464", with the port that was chosen.
  std::string address() const;

 private:
  struct Http;
  explicit MetricsServer(std::unique_ptr<Http> http);
  std::unique_ptr<Http> http_;
};

}  // namespace percheron

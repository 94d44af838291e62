#include "actors/metrics_server.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "actors/metrics_page.h"

namespace percheron {
namespace {

constexpr int kOk = 200, kMethodNotAllowed = 405, kServiceUnavailable = 503, kNotFound = 404;
constexpr int kPortMax = 65535;

bool is_ip_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> parsed;
  return inet_pton(AF_INET, host.c_str(), parsed.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), parsed.data()) == 1;
}

std::string joined(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

int answer(mg_connection* connection, int code, std::string_view type, const std::string& body) {
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %.*s\r\nContent-Length: %zu\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            code, mg_get_response_code_text(connection, code), static_cast<int>(type.size()),
            type.data(), body.size());
  const std::string_view method = mg_get_request_info(connection)->request_method;
  if (method != "HEAD") mg_write(connection, body.data(), body.size());
  return code;
}

int answer_text(mg_connection* connection, int code, const std::string& body) {
  return answer(connection, code, "text/plain; charset=utf-8", body + "\n");
}

int handle_request(mg_connection* connection, void* data) {
  const auto& answers = *static_cast<const MetricsAnswers*>(data);
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string_view method = request->request_method;
  const std::string_view path = request->local_uri;
  if (method != "GET" && method != "HEAD") {
    return answer_text(connection, kMethodNotAllowed, "only GET and HEAD");
  }
  if (path == "/metrics") {
    return answer(connection, kOk, MetricsPage::kContentType, answers.page());
  }
  if (path == "/run" && answers.run) {
    return answer(connection, kOk, "application/json", answers.run());
  }
  if (path == "/healthz") {
    return answer_text(connection, answers.alive() ? kOk : kServiceUnavailable, answers.state());
  }
  if (path == "/readyz") {
    return answer_text(connection, answers.ready() ? kOk : kServiceUnavailable, answers.state());
  }
  return answer_text(connection, kNotFound, "/metrics, /healthz and /readyz are served here");
}

// Its own messages would go to standard error; what matters is in the answer of mg_start2().
int ignore_message(const mg_connection*, const char*) { return 1; }

}  // namespace

bool MetricsAddress::loopback() const { return host.starts_with("127.") || host == "::1"; }

Result<MetricsAddress> parse_metrics_address(std::string_view text) {
  const auto refused = [&](std::string_view why) {
    return invalid_argument(fmt::format(
        "'{}' is no address to serve metrics on: {}; give PORT or ADDRESS:PORT, as in 9464, "
        "127.0.0.1:9464 or [::1]:9464",
        text, why));
  };
  MetricsAddress address;
  const size_t colon = text.rfind(':');
  std::string_view port = text;
  if (colon != std::string_view::npos) {
    std::string_view host = text.substr(0, colon);
    port = text.substr(colon + 1);
    const bool bracketed = host.starts_with('[') && host.ends_with(']');
    if (bracketed) host = host.substr(1, host.size() - 2);
    if (!bracketed && host.find(':') != std::string_view::npos) {
      return refused("an IPv6 address stands in brackets");
    }
    if (!host.empty()) address.host = std::string(host);
    if (address.host == "localhost") address.host = "127.0.0.1";
    if (!is_ip_address(address.host)) return refused("the address is no IP address");
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port < 0 ||
      address.port > kPortMax) {
    return refused("the port is no number from 0 to 65535");
  }
  return address;
}

struct MetricsServer::Http {
  MetricsAddress address;
  MetricsAnswers answers;
  mg_context* context = nullptr;
};

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(const MetricsAddress& address,
                                                            MetricsAnswers answers) {
  auto http = std::make_unique<Http>();
  http->address = address;
  http->answers = std::move(answers);
  const std::string listen = joined(address.host, address.port);
  // No document root, so files are never served; a slow client holds a thread for 5 s at most.
  std::array<const char*, 15> options = {"listening_ports",
                                         listen.c_str(),
                                         "num_threads",
                                         "2",
                                         "request_timeout_ms",
                                         "5000",
                                         "enable_keep_alive",
                                         "no",
                                         "max_request_size",
                                         "8192",
                                         "access_control_allow_origin",
                                         "",
                                         nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = ignore_message;
  mg_init_data init{&callbacks, nullptr, options.data()};
  std::array<char, 256> text{};
  unsigned code = 0;
  mg_error_data error{&code, text.data(), text.size()};
  http->context = mg_start2(&init, &error);
  if (!http->context) {
    return unavailable(fmt::format(
        "metrics can't be served on {}: {}; is the port in use, or the address not this machine's?",
        listen, text[0] != '\0' ? text.data() : "the server did not start"));
  }
  mg_set_request_handler(http->context, "**", handle_request, &http->answers);
  mg_server_port port{};
  if (mg_get_server_ports(http->context, 1, &port) == 1) http->address.port = port.port;
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(http)));
}

MetricsServer::MetricsServer(std::unique_ptr<Http> http) : http_(std::move(http)) {}

MetricsServer::~MetricsServer() { mg_stop(http_->context); }

std::string MetricsServer::address() const {
  return joined(http_->address.host, http_->address.port);
}

}  // namespace percheron

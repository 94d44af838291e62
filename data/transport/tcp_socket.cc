#include "data/transport/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <memory>

#include "data/transport/host_name.h"
#include "data/transport/socket_wait.h"

namespace percheron {
namespace {

// Together: a silent peer is given up after 15 s + 3 * 5 s, bytes that nobody takes after 30 s.
constexpr int kKeepaliveIdleSeconds = 15;
constexpr int kKeepaliveIntervalSeconds = 5;
constexpr int kKeepaliveProbes = 3;
constexpr int kUserTimeoutMs = 30'000;

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { ::freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

enum class Use { kConnect, kBind };

Result<Addresses> look_up(const NodeAddress& address, Use use) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (use == Use::kBind ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error == 0) return Addresses(found);
  return Status(use == Use::kBind ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable,
                "cannot find the host of " + address.text() + ": " + ::gai_strerror(error));
}

Result<FileDescriptor> make_socket(const addrinfo& where) {
  FileDescriptor socket(
      ::socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, where.ai_protocol));
  if (!socket.valid()) return os_error("make a socket", errno);
  return socket;
}

Status set_option(const FileDescriptor& socket, int level, int option, int value) {
  if (::setsockopt(socket.get(), level, option, &value, sizeof value) == 0) return ok_status();
  return os_error("set up a connection", errno);
}

Result<FileDescriptor> connect_one(const addrinfo& where, const NodeAddress& address,
                                   Deadline deadline) {
  PERCHERON_ASSIGN_OR_RETURN(FileDescriptor socket, make_socket(where));
  const std::string action = "connect to " + address.text();
  if (::connect(socket.get(), where.ai_addr, where.ai_addrlen) < 0) {
    if (errno != EINPROGRESS) return os_error(action, errno);
    PERCHERON_ASSIGN_OR_RETURN(const bool ready,
                               wait_ready(socket.get(), Readiness::kWrite, deadline));
    if (!ready) return unavailable("cannot " + action + ": no answer in time");
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) < 0) error = errno;
    if (error != 0) return os_error(action, error);
  }
  PERCHERON_RETURN_IF_ERROR(set_up_tcp(socket));
  return socket;
}

Result<FileDescriptor> listen_one(const addrinfo& where, int backlog) {
  PERCHERON_ASSIGN_OR_RETURN(FileDescriptor socket, make_socket(where));
  // A node that starts again takes its port at once.
  PERCHERON_RETURN_IF_ERROR(set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1));
  if (::bind(socket.get(), where.ai_addr, where.ai_addrlen) < 0 ||
      ::listen(socket.get(), backlog) < 0) {
    return os_error("listen", errno);
  }
  return socket;
}

Result<NodeAddress> address_of(const sockaddr_storage& where, socklen_t size) {
  std::array<char, NI_MAXHOST> host;
  std::array<char, NI_MAXSERV> port;
  const int error =
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&where), size, host.data(), host.size(),
                    port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0)
    return internal_error("a socket has no address: " + std::string(gai_strerror(error)));
  return NodeAddress{host.data(), static_cast<uint16_t>(std::stoi(port.data()))};
}

}  // namespace

Result<NodeAddress> NodeAddress::parse(std::string_view text) {
  const Status wrong = invalid_argument("'" + std::string(text) +
                                        "' is no address; it is written host:port or [IPv6]:port");
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return wrong;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  NodeAddress address;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port == 0) return wrong;
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
    if (host.find(':') == host.npos) return wrong;
  } else if (!is_host_name(host)) {
    return wrong;
  }
  address.host = host;
  return address;
}

std::string NodeAddress::text() const {
  const bool is_ipv6 = host.find(':') != host.npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Status set_up_tcp(const FileDescriptor& socket) {
  PERCHERON_RETURN_IF_ERROR(set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1));
  PERCHERON_RETURN_IF_ERROR(set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1));
  PERCHERON_RETURN_IF_ERROR(set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds));
  PERCHERON_RETURN_IF_ERROR(
      set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds));
  PERCHERON_RETURN_IF_ERROR(set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes));
  return set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

Result<FileDescriptor> connect_tcp(const NodeAddress& address, Deadline deadline) {
  PERCHERON_ASSIGN_OR_RETURN(const Addresses addresses, look_up(address, Use::kConnect));
  Status status = unavailable("the host of " + address.text() + " has no address");
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Result<FileDescriptor> socket = connect_one(*at, address, deadline);
    if (socket.ok()) return socket;
    status = socket.status();
    if (deadline.passed()) break;
  }
  return status;
}

Result<FileDescriptor> listen_tcp(const NodeAddress& address, int backlog) {
  PERCHERON_ASSIGN_OR_RETURN(const Addresses addresses, look_up(address, Use::kBind));
  Status status = failed_precondition("the host of " + address.text() + " has no address");
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Result<FileDescriptor> socket = listen_one(*at, backlog);
    if (socket.ok()) return socket;
    status = socket.status().with_context(address.text());
  }
  return status;
}

Result<uint16_t> local_port(const FileDescriptor& socket) {
  sockaddr_storage where{};
  socklen_t size = sizeof where;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&where), &size) < 0) {
    return os_error("ask the port of a socket", errno);
  }
  PERCHERON_ASSIGN_OR_RETURN(const NodeAddress address, address_of(where, size));
  return address.port;
}

Result<AcceptedSocket> accept_tcp(const FileDescriptor& listener) {
  sockaddr_storage where{};
  socklen_t size = sizeof where;
  AcceptedSocket accepted;
  accepted.socket = FileDescriptor(::accept4(listener.get(), reinterpret_cast<sockaddr*>(&where),
                                             &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.socket.valid()) {
    // A peer that gave up while it waited is none either.
    const bool none = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ||
                      errno == EPROTO || errno == ENETDOWN || errno == EHOSTUNREACH ||
                      errno == ENETUNREACH;
    if (none) return accepted;
    return os_error("accept a connection", errno);
  }
  PERCHERON_RETURN_IF_ERROR(set_up_tcp(accepted.socket));
  PERCHERON_ASSIGN_OR_RETURN(accepted.peer, address_of(where, size));
  return accepted;
}

}  // namespace percheron

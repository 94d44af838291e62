#include "tools/http_get.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string_view>

namespace percheron {
namespace {

constexpr size_t kAnswerBytesMax = size_t{8} << 20;

// Whether the socket can be read from, or written to, before the deadline.
bool is_ready(int socket, short events, Deadline deadline) {  // NOLINT: poll's type
  pollfd ready{socket, events, 0};
  return poll(&ready, 1, deadline.poll_ms()) > 0;
}

}  // namespace

Result<std::string> http_get(const NodeAddress& address, const std::string& path,
                             Deadline deadline) {
  const auto failed = [&address](const std::string& why) {
    return unavailable(address.text() + ": " + why);
  };
  PERCHERON_ASSIGN_OR_RETURN(const FileDescriptor socket, connect_tcp(address, deadline));
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: " + address.text() + "\r\nConnection: close\r\n\r\n";
  // It is shorter than what a new connection takes at once.
  if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return failed("it takes no request");
  }
  std::string answer;
  std::array<char, 16384> buffer;
  while (true) {
    if (!is_ready(socket.get(), POLLIN, deadline)) return failed("no answer in time");
    const ssize_t count = recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return failed("the connection broke");
    if (count == 0) break;
    answer.append(buffer.data(), static_cast<size_t>(count));
    if (answer.size() > kAnswerBytesMax) return failed("its answer does not end");
  }
  const std::string_view line = std::string_view(answer).substr(0, answer.find("\r\n"));
  const size_t body = answer.find("\r\n\r\n");
  if (!line.starts_with("HTTP/1.") || body == std::string::npos) return failed("no HTTP is spoken");
  if (line.find(" 200 ") == std::string_view::npos) return failed(std::string(line));
  return answer.substr(body + 4);
}

}  // namespace percheron

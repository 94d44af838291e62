#include "tools/node_client.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "base/file_system.h"
#include "data/transport/random_bytes.h"
#include "data/transport/unix_listener.h"

namespace percheron {

std::string default_state_directory() {
  if (const char* given = std::getenv("PERCHERON_STATE"); given && *given) return given;
  if (geteuid() == 0) return "/var/lib/percheron";
  const char* home = std::getenv("HOME");
  return join_path(home && *home ? home : ".", ".local/state/percheron");
}

std::string operator_socket(const std::string& state_directory) {
  return join_path(state_directory, "operator.sock");
}

Result<NodeClient> NodeClient::connect(const std::string& state_directory) {
  Result<std::unique_ptr<FrameChannel>> channel = connect_unix(operator_socket(state_directory));
  if (channel.ok()) return NodeClient(std::move(channel).value());
  return unavailable("no node answers: " + channel.status().message() +
                     "; start one with `percheron node`, or name its --state");
}

Result<NodeClient> NodeClient::connect(const NodeAddress& address, const Credentials& credentials) {
  PERCHERON_ASSIGN_OR_RETURN(
      Connection connection,
      connect_node(address, "", credentials, Purpose::kCli, system_random_bytes(),
                   Deadline::after(std::chrono::seconds(5))));
  return NodeClient(stream_channel(std::move(connection.stream)));
}

Result<proto::ControlReply> NodeClient::ask(proto::ControlRequest request,
                                            std::chrono::milliseconds timeout) {
  request.set_request(next_++);
  const Deadline deadline = Deadline::after(timeout);
  PERCHERON_RETURN_IF_ERROR(channel_->send(request.SerializeAsString(), deadline));
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<Frame> frame, channel_->receive(deadline));
  proto::ControlReply reply;
  if (!frame || !reply.ParseFromString(frame->bytes) || reply.request() != request.request()) {
    return unavailable("the node did not answer");
  }
  if (!reply.error().empty()) return failed_precondition(reply.error());
  return reply;
}

}  // namespace percheron

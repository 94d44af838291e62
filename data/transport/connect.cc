#include "data/transport/connect.h"

namespace percheron {

Result<Connection> connect_node(const NodeAddress& address, const std::string& expected_name,
                                const Credentials& credentials, Purpose purpose,
                                RandomBytes& random, Deadline deadline) {
  PERCHERON_ASSIGN_OR_RETURN(FileDescriptor socket, connect_tcp(address, deadline));
  Connection connection;
  connection.purpose = purpose;
  if (credentials.tls == nullptr) {
    PERCHERON_ASSIGN_OR_RETURN(connection.stream, socket_stream(std::move(socket), address.text()));
  } else {
    const std::string& name = expected_name.empty() ? address.host : expected_name;
    PERCHERON_ASSIGN_OR_RETURN(
        connection.stream,
        credentials.tls->connect(std::move(socket), address.text(), name, deadline));
  }
  PERCHERON_ASSIGN_OR_RETURN(connection.peer,
                             say_hello(*connection.stream, credentials, purpose, random, deadline));
  if (!expected_name.empty() && connection.peer.name != expected_name) {
    return failed_precondition("at " + address.text() + " answers node " + connection.peer.name +
                               ", not " + expected_name);
  }
  return connection;
}

}  // namespace percheron

#include "tools/node_access.h"

#include "base/clock.h"
#include "base/file_system.h"

namespace percheron {

void NodeAccess::add_options(CLI::App* command) {
  command->add_option(
      "--state", state,
      "The node's state directory; default: $PERCHERON_STATE, else " + default_state_directory());
  command->add_option("--node", node,
                      "HOST:PORT of any node of the cluster, in place of this machine's");
  access.add_options(command);
}

Result<NodeClient> NodeAccess::connect() const {
  if (node.empty()) return NodeClient::connect(state);
  if (!access.given()) {
    return invalid_argument("--node needs --certs DIR, or --insecure with --secret");
  }
  PERCHERON_ASSIGN_OR_RETURN(const NodeAddress address, NodeAddress::parse(node));
  PERCHERON_ASSIGN_OR_RETURN(
      const Credentials credentials,
      access.credentials(system_files(), system_clock(),
                         access.certificate.empty() ? "operator" : access.certificate));
  return NodeClient::connect(address, credentials);
}

}  // namespace percheron

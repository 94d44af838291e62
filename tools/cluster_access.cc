#include "tools/cluster_access.h"

#include "data/transport/certificates.h"
#include "data/transport/random_bytes.h"

namespace percheron {

void ClusterAccess::add_options(CLI::App* command) {
  command->add_option("--certs", certificates,
                      "Directory of `percheron certs`: connections are mutual TLS");
  command->add_option(
      "--certificate", certificate,
      "NAME of the certificate in it; default: a node's own name, operators' is \"operator\"");
  command->add_option("--secret", secret,
                      "File with the cluster's secret; default: cluster.secret of --certs");
  command->add_flag("--insecure", insecure, "Plain text: for a network that nobody else reaches");
}

Result<Credentials> ClusterAccess::credentials(FileSystem& files, const Clock& clock,
                                               const std::string& name) const {
  if (insecure && !certificates.empty()) {
    return invalid_argument("--certs and --insecure contradict each other: give one of them");
  }
  if (insecure && secret.empty()) {
    return invalid_argument(
        "--insecure needs --secret FILE: nodes prove that they belong together");
  }
  PERCHERON_ASSIGN_OR_RETURN(
      const ClusterSecret known,
      ClusterSecret::read(files, secret.empty() ? CertificateFiles::secret(certificates) : secret));
  Credentials credentials{{}, known, nullptr};
  credentials.self.name = name;
  credentials.self.node_uuid = make_uuid(system_random_bytes());
  credentials.self.incarnation_uuid = make_uuid(system_random_bytes());
  credentials.self.build_version = PERCHERON_VERSION;
  if (insecure) return credentials;
  const std::string& shown = certificate.empty() ? name : certificate;
  const TlsFiles paths{CertificateFiles::ca(certificates),
                       CertificateFiles::certificate(certificates, shown),
                       CertificateFiles::key(certificates, shown)};
  PERCHERON_ASSIGN_OR_RETURN(credentials.tls, TlsContext::load(files, paths, clock));
  return credentials;
}

}  // namespace percheron

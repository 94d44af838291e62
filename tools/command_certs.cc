#include <memory>
#include <string>

#include "base/clock.h"
#include "base/file_system.h"
#include "data/transport/certificates.h"
#include "tools/commands.h"
#include "tools/number_options.h"
#include "tools/printer.h"

namespace percheron {
namespace {

struct CertsOptions {
  std::string directory;
  int ca_days = kCaDaysDefault;
  CertificateRequest request;
};

Status make_authority(const CertsOptions& options) {
  PERCHERON_RETURN_IF_ERROR(init_certificates(system_files(), options.directory, options.ca_days,
                                              system_clock(), system_random_bytes()));
  Printer out(stdout);
  out.print("made the certificate authority {}, valid for {} days\n",
            CertificateFiles::ca(options.directory), options.ca_days);
  out.print("keep {} and {} private; all nodes need a copy of the second\n",
            CertificateFiles::ca_key(options.directory),
            CertificateFiles::secret(options.directory));
  out.print("next: percheron certs issue {} NODE --address HOST\n", options.directory);
  return out.status();
}

Status issue(const CertsOptions& options) {
  PERCHERON_RETURN_IF_ERROR(
      issue_certificate(system_files(), options.directory, options.request, system_clock()));
  Printer out(stdout);
  out.print("issued {} and {}\n",
            CertificateFiles::certificate(options.directory, options.request.name),
            CertificateFiles::key(options.directory, options.request.name));
  out.print("node {} needs both, and copies of {} and {}\n", options.request.name,
            CertificateFiles::ca(options.directory), CertificateFiles::secret(options.directory));
  return out.status();
}

void add_directory(CLI::App& command, CertsOptions& options) {
  command.add_option("directory", options.directory, "Of the certificate authority")->required();
}

}  // namespace

void add_certs_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<CertsOptions>();
  CLI::App* command = app.add_subcommand(
      "certs", "Make the certificates by which the nodes of a cluster know each other");
  command->require_subcommand(1);
  command->footer(
      "percheron certs init once, then percheron certs issue for every node. Keys and the secret "
      "can be read by their owner only, and no file is ever overwritten.");

  CLI::App* init =
      command->add_subcommand("init", "Make a private certificate authority and a cluster secret");
  add_directory(*init, *options);
  init->add_option("--days", options->ca_days, "How long the authority is valid")
      ->check(in_range(1, kCertificateDaysMax))
      ->capture_default_str();
  init->footer("Writes ca.crt, ca.key and cluster.secret.");
  init->callback([options, &chosen] { chosen = [options] { return make_authority(*options); }; });

  CLI::App* node = command->add_subcommand("issue", "Issue a certificate for a node or a user");
  add_directory(*node, *options);
  node->add_option("name", options->request.name, "Of the node, in letters, digits, '-' and '.'")
      ->required();
  node->add_option("--address", options->request.addresses,
                   "Host name or IP address by which others reach the node; may be repeated")
      ->allow_extra_args(false);
  node->add_option("--days", options->request.days, "How long the certificate is valid")
      ->check(in_range(1, kCertificateDaysMax))
      ->capture_default_str();
  node->footer(
      "Writes NAME.crt and NAME.key. A certificate that would outlive its authority ends with it.");
  node->callback([options, &chosen] { chosen = [options] { return issue(*options); }; });
}

}  // namespace percheron

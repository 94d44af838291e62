#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "data/transport/random_bytes.h"

namespace percheron {

/// The files of `percheron certs`, by name in its directory.
struct CertificateFiles {
  static std::string ca(const std::string& directory);      // ca.crt
  static std::string ca_key(const std::string& directory);  // ca.key, 0600
  static std::string secret(const std::string& directory);  // cluster.secret, 0600
  static std::string certificate(const std::string& directory, const std::string& name);
  static std::string key(const std::string& directory, const std::string& name);  // 0600
};

constexpr int kCaDaysDefault = 3650;
constexpr int kCertificateDaysDefault = 825;
constexpr int kCertificateDaysMax = 36500;

/// Makes a private certificate authority and a cluster secret in `directory`, which is made if need
/// be: ca.crt, ca.key, cluster.secret. Valid for `days` from now. Nothing is overwritten:
/// kFailedPrecondition, naming the file that is there. After an error nothing is left.
Status init_certificates(FileSystem& files, const std::string& directory, int days,
                         const Clock& clock, RandomBytes& random);

/// What a certificate is made out to.
struct CertificateRequest {
  std::string name;                    // of a node or a user; a host name's letters
  std::vector<std::string> addresses;  // host names and IP addresses by which others reach it
  int days = kCertificateDaysDefault;
};

/// Issues NAME.crt and NAME.key by the authority in `directory`; one that would outlive the
/// authority ends with it. Errors as init_certificates(), and kInvalidArgument for names and
/// addresses that can't stand in a certificate.
Status issue_certificate(FileSystem& files, const std::string& directory,
                         const CertificateRequest& request, const Clock& clock);

}  // namespace percheron

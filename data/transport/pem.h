#pragma once

#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/transport/openssl_pointers.h"

namespace percheron {

/// The certificates of the PEM file `path`, at least one. Errors name the file.
Result<std::vector<X509Ptr>> read_certificates(FileSystem& files, const std::string& path);
/// The private key of the PEM file `path`, which no pass phrase protects.
Result<PkeyPtr> read_private_key(FileSystem& files, const std::string& path);

/// The DNS names and IP addresses that `certificate` is for, in its order.
std::vector<std::string> certificate_names(const X509* certificate);
/// As "2026-11-30", in UTC.
std::string date_text(const ASN1_TIME* time);
/// What OpenSSL says of its newest error; forgets all of them.
std::string openssl_error();

/// Why a certificate was not accepted: `error` is one of X509_V_ERR_*, `certificate` the one at
/// fault (may be null), `what` as "the certificate node1.crt", `ca` the file with the authority.
std::string verify_error_text(int error, const X509* certificate, const std::string& what,
                              const std::string& ca);

}  // namespace percheron

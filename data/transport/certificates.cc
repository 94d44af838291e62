#include "data/transport/certificates.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "data/transport/host_name.h"
#include "data/transport/pem.h"
#include "data/transport/private_file.h"

namespace percheron {
namespace {

constexpr int64_t kDaySeconds = 86400;
// A machine whose clock is a little behind shall accept a new certificate.
constexpr int64_t kBackdateSeconds = 300;

Status openssl_failed(std::string_view action) {
  return internal_error("OpenSSL cannot " + std::string(action) + ": " + openssl_error());
}

template <class Write>
Result<std::string> to_pem(Write write) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return openssl_failed("write PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

Result<std::string> key_pem(EVP_PKEY* key) {
  return to_pem([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

Result<std::string> certificate_pem(X509* certificate) {
  return to_pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

bool set_random_serial(X509* certificate) {
  std::array<unsigned char, 16> bytes;
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) return false;
  bytes[0] &= 0x7f;  // positive
  bytes[0] |= 0x40;  // of full length
  BIGNUM* number = BN_bin2bn(bytes.data(), bytes.size(), nullptr);
  const bool done = BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return done;
}

bool add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const X509ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// A certificate for `key` with its name, time and serial number, not yet signed.
Result<X509Ptr> make_certificate(EVP_PKEY* key, const std::string& common_name, int64_t begin,
                                 int64_t end) {
  X509Ptr certificate(X509_new());
  PERCHERON_CHECK(certificate != nullptr, "OpenSSL has no memory");
  X509* x509 = certificate.get();
  // A common name has at most 64 characters; names are compared by the alternative name alone.
  const std::string subject = common_name.substr(0, 64);
  const bool done =
      X509_set_version(x509, X509_VERSION_3) == 1 && set_random_serial(x509) &&
      ASN1_TIME_set(X509_getm_notBefore(x509), static_cast<time_t>(begin)) != nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(x509), static_cast<time_t>(end)) != nullptr &&
      X509_set_pubkey(x509, key) == 1 &&
      X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1,
                                 0) == 1;
  if (!done) return openssl_failed("make a certificate");
  return certificate;
}

Result<X509Ptr> make_authority(EVP_PKEY* key, int days, const Clock& clock) {
  const auto now = static_cast<int64_t>(std::floor(clock.unix_seconds()));
  PERCHERON_ASSIGN_OR_RETURN(X509Ptr authority,
                             make_certificate(key, "Percheron cluster authority",
                                              now - kBackdateSeconds, now + days * kDaySeconds));
  X509* x509 = authority.get();
  const bool done =
      X509_set_issuer_name(x509, X509_get_subject_name(x509)) == 1 &&
      add_extension(x509, x509, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
      add_extension(x509, x509, NID_key_usage, "critical,keyCertSign,cRLSign") &&
      add_extension(x509, x509, NID_subject_key_identifier, "hash") &&
      X509_sign(x509, key, EVP_sha256()) > 0;
  if (!done) return openssl_failed("make an authority");
  return authority;
}

bool is_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> bytes;
  return inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

// As OpenSSL's configuration spells it: "DNS:node1,IP:10.0.0.3".
std::string alternative_names(const CertificateRequest& request) {
  std::string names = "DNS:" + request.name;
  for (const std::string& address : request.addresses) {
    if (address == request.name) continue;
    names += (is_address(address) ? ",IP:" : ",DNS:") + address;
  }
  return names;
}

Result<X509Ptr> make_node_certificate(EVP_PKEY* key, const CertificateRequest& request,
                                      X509* authority, EVP_PKEY* authority_key,
                                      const Clock& clock) {
  const auto now = static_cast<int64_t>(std::floor(clock.unix_seconds()));
  PERCHERON_ASSIGN_OR_RETURN(X509Ptr certificate,
                             make_certificate(key, request.name, now - kBackdateSeconds,
                                              now + request.days * kDaySeconds));
  X509* x509 = certificate.get();
  const ASN1_TIME* authority_end = X509_get0_notAfter(authority);
  if (ASN1_TIME_compare(X509_get0_notAfter(x509), authority_end) > 0) {
    X509_set1_notAfter(x509, authority_end);
  }
  const bool done =
      X509_set_issuer_name(x509, X509_get_subject_name(authority)) == 1 &&
      add_extension(x509, authority, NID_basic_constraints, "critical,CA:FALSE") &&
      add_extension(x509, authority, NID_key_usage, "critical,digitalSignature") &&
      add_extension(x509, authority, NID_ext_key_usage, "serverAuth,clientAuth") &&
      add_extension(x509, authority, NID_authority_key_identifier, "keyid:always") &&
      add_extension(x509, authority, NID_subject_alt_name, alternative_names(request)) &&
      X509_sign(x509, authority_key, EVP_sha256()) > 0;
  if (!done) return openssl_failed("make the certificate of " + request.name);
  return certificate;
}

Status check_days(int days) {
  if (days >= 1 && days <= kCertificateDaysMax) return ok_status();
  return invalid_argument("a certificate is valid for 1 to " + std::to_string(kCertificateDaysMax) +
                          " days, not " + std::to_string(days));
}

// A file to be written; private ones only for their owner.
struct NewFile {
  enum class Reader { kEverybody, kOwner };
  std::string path;
  std::string text;
  Reader reader = Reader::kEverybody;
};

Status write_new(FileSystem& files, const NewFile& file) {
  if (file.reader == NewFile::Reader::kOwner) return write_private_file(file.path, file.text);
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> out, files.create_new(file.path));
  Status status = out->append(std::as_bytes(std::span(file.text)));
  if (status.ok()) status = out->sync();
  if (status.ok()) status = out->close();
  // The write's own error is the one to report.
  if (!status.ok()) [[maybe_unused]]
    const Status ignored = files.remove_all(file.path);
  return status;
}

// All of them, or none.
Status write_all_new(FileSystem& files, const std::string& directory,
                     const std::vector<NewFile>& new_files) {
  for (const NewFile& file : new_files) {
    if (files.exists(file.path)) {
      return failed_precondition(file.path + " is there already and would be overwritten; remove " +
                                 "it or choose another directory or name");
    }
  }
  for (size_t i = 0; i < new_files.size(); ++i) {
    const Status status = write_new(files, new_files[i]);
    if (status.ok()) continue;
    for (size_t k = 0; k < i; ++k) {
      [[maybe_unused]] const Status ignored = files.remove_all(new_files[k].path);
    }
    return status;
  }
  return files.sync_directory(directory);
}

std::string random_hex(RandomBytes& random, size_t bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string raw(bytes, '\0'), text;
  random.fill(std::as_writable_bytes(std::span(raw)));
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Status check_request(const CertificateRequest& request) {
  PERCHERON_RETURN_IF_ERROR(check_days(request.days));
  if (!is_host_name(request.name)) {
    return invalid_argument("'" + request.name +
                            "' cannot be the name of a node: " + std::string(kHostNameRule));
  }
  for (const std::string& address : request.addresses) {
    if (is_address(address) || is_host_name(address)) continue;
    return invalid_argument("'" + address + "' is neither an IP address nor a host name");
  }
  return ok_status();
}

}  // namespace

std::string CertificateFiles::ca(const std::string& directory) {
  return join_path(directory, "ca.crt");
}
std::string CertificateFiles::ca_key(const std::string& directory) {
  return join_path(directory, "ca.key");
}
std::string CertificateFiles::secret(const std::string& directory) {
  return join_path(directory, "cluster.secret");
}
std::string CertificateFiles::certificate(const std::string& directory, const std::string& name) {
  return join_path(directory, name + ".crt");
}
std::string CertificateFiles::key(const std::string& directory, const std::string& name) {
  return join_path(directory, name + ".key");
}

Status init_certificates(FileSystem& files, const std::string& directory, int days,
                         const Clock& clock, RandomBytes& random) {
  PERCHERON_RETURN_IF_ERROR(check_days(days));
  const PkeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return openssl_failed("make a key");
  PERCHERON_ASSIGN_OR_RETURN(const X509Ptr authority, make_authority(key.get(), days, clock));
  PERCHERON_ASSIGN_OR_RETURN(std::string key_text, key_pem(key.get()));
  PERCHERON_ASSIGN_OR_RETURN(std::string text, certificate_pem(authority.get()));
  PERCHERON_RETURN_IF_ERROR(files.create_directories(directory));
  return write_all_new(
      files, directory,
      {{CertificateFiles::ca_key(directory), std::move(key_text), NewFile::Reader::kOwner},
       {CertificateFiles::secret(directory), random_hex(random, 32) + "\n",
        NewFile::Reader::kOwner},
       {CertificateFiles::ca(directory), std::move(text)}});
}

Status issue_certificate(FileSystem& files, const std::string& directory,
                         const CertificateRequest& request, const Clock& clock) {
  PERCHERON_RETURN_IF_ERROR(check_request(request));
  const std::string ca = CertificateFiles::ca(directory);
  const std::string ca_key = CertificateFiles::ca_key(directory);
  if (!files.exists(ca) || !files.exists(ca_key)) {
    return not_found(directory + " holds no certificate authority (ca.crt and ca.key); make one " +
                     "with percheron certs init " + directory);
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<X509Ptr> authorities, read_certificates(files, ca));
  PERCHERON_ASSIGN_OR_RETURN(const PkeyPtr authority_key, read_private_key(files, ca_key));
  X509* authority = authorities.front().get();
  if (X509_check_private_key(authority, authority_key.get()) != 1) {
    ERR_clear_error();
    return failed_precondition("the key " + ca_key + " does not belong to the certificate " + ca);
  }
  auto now = static_cast<time_t>(std::floor(clock.unix_seconds()));
  if (X509_cmp_time(X509_get0_notAfter(authority), &now) < 0) {
    return failed_precondition("the authority " + ca + " expired on " +
                               date_text(X509_get0_notAfter(authority)) +
                               "; make a new one with percheron certs init");
  }
  const PkeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return openssl_failed("make a key");
  PERCHERON_ASSIGN_OR_RETURN(
      const X509Ptr certificate,
      make_node_certificate(key.get(), request, authority, authority_key.get(), clock));
  PERCHERON_ASSIGN_OR_RETURN(std::string key_text, key_pem(key.get()));
  PERCHERON_ASSIGN_OR_RETURN(std::string text, certificate_pem(certificate.get()));
  return write_all_new(files, directory,
                       {{CertificateFiles::key(directory, request.name), std::move(key_text),
                         NewFile::Reader::kOwner},
                        {CertificateFiles::certificate(directory, request.name), std::move(text)}});
}

}  // namespace percheron

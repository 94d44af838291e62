#include "data/transport/pem.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <array>
#include <ctime>

namespace percheron {
namespace {

BioPtr memory_bio(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Files of certificates are small; BIO_new_mem_buf() counts in int.
constexpr size_t kFileBytesMax = size_t{1} << 20;

Result<std::string> read_pem(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(std::string text, files.read_text(path));
  if (text.size() > kFileBytesMax) {
    return invalid_argument(path + " has " + std::to_string(text.size()) +
                            " bytes; a PEM file of certificates has at most " +
                            std::to_string(kFileBytesMax));
  }
  return text;
}

int no_pass_phrase(char*, int, int, void*) { return 0; }

std::string address_text(const ASN1_OCTET_STRING* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int size = ASN1_STRING_length(address);
  const int family = size == 4 ? AF_INET : AF_INET6;
  if (size != 4 && size != 16) return "";
  inet_ntop(family, ASN1_STRING_get0_data(address), text.data(), text.size());
  return text.data();
}

}  // namespace

std::string openssl_error() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "unknown error of OpenSSL" : reason;
}

Result<std::vector<X509Ptr>> read_certificates(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, read_pem(files, path));
  const BioPtr bio = memory_bio(text);
  std::vector<X509Ptr> certificates;
  for (;;) {
    X509Ptr certificate(PEM_read_bio_X509(bio.get(), nullptr, no_pass_phrase, nullptr));
    if (certificate == nullptr) break;
    certificates.push_back(std::move(certificate));
  }
  // The end of the file reads as "no start line".
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = openssl_error();
  if (certificates.empty() && at_end) {
    return invalid_argument(path + " holds no certificate in PEM");
  }
  if (!at_end) return invalid_argument(path + " holds a damaged certificate: " + reason);
  return certificates;
}

Result<PkeyPtr> read_private_key(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, read_pem(files, path));
  const BioPtr bio = memory_bio(text);
  PkeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_pass_phrase, nullptr));
  if (key != nullptr) return key;
  const std::string reason = openssl_error();
  if (text.find("ENCRYPTED") != std::string::npos) {
    return invalid_argument(path + " is protected by a pass phrase; a node needs a key without");
  }
  return invalid_argument(path + " holds no private key in PEM: " + reason);
}

std::vector<std::string> certificate_names(const X509* certificate) {
  std::vector<std::string> names;
  const GeneralNamesPtr entries(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(entries.get()); ++i) {
    const GENERAL_NAME* entry = sk_GENERAL_NAME_value(entries.get(), i);
    if (entry->type == GEN_DNS) {
      const ASN1_IA5STRING* name = entry->d.dNSName;
      names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name)),
                         static_cast<size_t>(ASN1_STRING_length(name)));
    } else if (entry->type == GEN_IPADD) {
      names.push_back(address_text(entry->d.iPAddress));
    }
  }
  return names;
}

std::string date_text(const ASN1_TIME* time) {
  std::tm date{};
  std::array<char, 16> text{};
  if (ASN1_TIME_to_tm(time, &date) != 1) return "an unknown date";
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d", &date);
  return {text.data(), size};
}

std::string verify_error_text(int error, const X509* certificate, const std::string& what,
                              const std::string& ca) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return what + " expired on " +
             (certificate != nullptr ? date_text(X509_get0_notAfter(certificate)) : "its date") +
             "; issue a new one with percheron certs issue";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return what + " is valid only from " +
             (certificate != nullptr ? date_text(X509_get0_notBefore(certificate))
                                     : "a later date") +
             "; look at the clocks of both machines";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return what + " was not issued by the authority in " + ca;
    default: return what + " is not accepted: " + X509_verify_cert_error_string(error);
  }
}

}  // namespace percheron

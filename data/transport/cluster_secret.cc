#include "data/transport/cluster_secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"

namespace percheron {

Result<ClusterSecret> ClusterSecret::parse(std::string_view text, const std::string& where) {
  static constexpr std::string_view kWhiteSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  const size_t end = text.find_last_not_of(kWhiteSpace);
  text = begin == text.npos ? "" : text.substr(begin, end + 1 - begin);
  if (text.size() < kCharactersMin || text.size() > kCharactersMax) {
    return invalid_argument("the cluster secret in " + where + " has " +
                            std::to_string(text.size()) + " characters; it needs " +
                            std::to_string(kCharactersMin) + " to " +
                            std::to_string(kCharactersMax) + ", as percheron certs init makes it");
  }
  return ClusterSecret(std::string(text));
}

Result<ClusterSecret> ClusterSecret::read(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
  return parse(text, path);
}

ClusterSecret::Digest ClusterSecret::authenticate(std::string_view message) const {
  Digest digest;
  unsigned int size = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &size);
  PERCHERON_CHECK(done != nullptr && size == digest.size(), "OpenSSL has no HMAC-SHA-256");
  return digest;
}

bool ClusterSecret::verify(std::string_view message, std::string_view digest) const {
  const Digest expected = authenticate(message);
  return digest.size() == expected.size() &&
         CRYPTO_memcmp(digest.data(), expected.data(), expected.size()) == 0;
}

}  // namespace percheron

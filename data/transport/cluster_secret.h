#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "base/file_system.h"
#include "base/status.h"

namespace percheron {

/// What all nodes of a cluster know and nobody else; it never leaves the process. Never print it.
class ClusterSecret {
 public:
  using Digest = std::array<std::byte, 32>;
  static constexpr size_t kCharactersMin = 32;
  static constexpr size_t kCharactersMax = 1024;

  /// The secret in `text`, without white space around it. kInvalidArgument when it is too short or
  /// too long; the message does not show it.
  static Result<ClusterSecret> parse(std::string_view text, const std::string& where);
  /// As parse(), of a file's content.
  static Result<ClusterSecret> read(FileSystem& files, const std::string& path);

  /// HMAC-SHA-256 of `message` with the secret as key. Source: RFC 2104.
  Digest authenticate(std::string_view message) const;
  /// Whether `digest` is authenticate(message); takes the same time for any wrong one.
  bool verify(std::string_view message, std::string_view digest) const;

 private:
  explicit ClusterSecret(std::string secret) : secret_(std::move(secret)) {}

  std::string secret_;
};

}  // namespace percheron

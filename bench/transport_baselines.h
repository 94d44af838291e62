#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace percheron {

/// What the transport is compared with: the same bytes over the same loopback, with nothing around
/// them. One thread sends, the caller's receives.
class Baseline {
 public:
  virtual ~Baseline() = default;
  /// Moves the source's bytes into `into`, of the same size.
  virtual Status transfer(std::span<std::byte> into) = 0;
};

/// send() and recv() on `streams` TCP connections, each with a part of the bytes.
Result<std::unique_ptr<Baseline>> tcp_baseline(std::span<const std::byte> source, int streams);

/// SSL_write() and SSL_read() of OpenSSL on one blocking TCP connection: TLS 1.3, AES-128-GCM.
/// `certificate` and `key` are PEM files.
Result<std::unique_ptr<Baseline>> tls_baseline(std::span<const std::byte> source,
                                               const std::string& certificate,
                                               const std::string& key);

}  // namespace percheron

#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "data/transport/byte_stream.h"
#include "data/transport/random_bytes.h"

namespace percheron {

/// Carries what travels on bulk connections by UCX: over InfiniBand and RoCE where a machine has
/// it, else over what UCX finds. The connection itself stays as it was made: it told the ends who
/// the other is, it brings both the address and the token for UCX, and its end is the end.
///
/// UCX encrypts nothing, and whoever reaches its ports reaches its code: for networks that nobody
/// else reaches. Thread-safe.
class UcxCarrier {
 public:
  /// `devices`: those of UCX_NET_DEVICES ("eth0", "mlx5_0:1,mlx5_1:1"), to which alone it is bound;
  /// what else UCX is told by its environment holds. kFailedPrecondition where Percheron was built
  /// without UCX, or UCX does not start. Of a device that is not there UCX warns, on standard
  /// error; then nobody is reached by it, and connections stay as they are.
  static Result<std::unique_ptr<UcxCarrier>> open(const std::string& devices);
  /// Whether this Percheron has UCX.
  static bool is_built();
  virtual ~UcxCarrier() = default;  // after all its streams

  struct Carried {
    std::unique_ptr<ByteStream> stream;
    Status ucx;  // ok where the stream goes by UCX; else why it is the connection, as it was
    bool declined = false;  // by the other end, at once
  };
  /// Both ends of an authenticated connection call this at its first byte, where both said that
  /// they would (NodeIdentity::ucx). What can't be had by UCX stays on the connection, at both ends
  /// alike. kUnavailable, or what the connection says, when it broke or `deadline` passed.
  virtual Result<Carried> take_over(std::unique_ptr<ByteStream> connection, RandomBytes& random,
                                    Deadline deadline) = 0;
  /// In its place where UCX is known to fail: the connection stays as it is, and neither end tries
  /// anything. Errors as take_over().
  virtual Status decline(ByteStream& connection, Deadline deadline) = 0;
};

}  // namespace percheron

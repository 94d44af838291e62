#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "data/transport/byte_stream.h"
#include "data/transport/cluster_secret.h"
#include "data/transport/random_bytes.h"
#include "data/transport/tls.h"

namespace percheron {

/// Of the hello and of everything that travels after it: peers of another version are refused.
constexpr uint32_t kProtocolVersion = 1;

/// What a connection is for.
enum class Purpose {
  kControl,  // between daemons
  kBulk,     // BulkServer and BulkClient
  kCli,      // from the command line
};
std::string_view purpose_name(Purpose purpose);

/// Who is at an end.
struct NodeIdentity {
  std::string name;              // as in the certificate: a host name's letters, at most 253
  std::string node_uuid;         // of the node, kept across restarts; make_uuid()
  std::string incarnation_uuid;  // of this process
  std::string build_version;     // for messages only
  bool ucx = false;              // takes bulk connections over by UCX where the other does too

  bool operator==(const NodeIdentity&) const = default;
};

/// What an end says of itself and by what it knows others. Immutable once connections use it.
struct Credentials {
  NodeIdentity self;
  ClusterSecret secret;
  std::shared_ptr<const TlsContext> tls;  // null: plain text, as --insecure asks for
};

/// An authenticated connection, at the first byte after the hello.
struct Connection {
  std::unique_ptr<ByteStream> stream;
  NodeIdentity peer;
  Purpose purpose = Purpose::kControl;
};

/// The hello tells both ends who the other is, and that it knows the cluster secret, without
/// sending it: each proves it over both ends' fresh nonces, both messages and the TLS session, so a
/// recorded hello is worth nothing. The one who connected proves first.
///
///   connector                              acceptor
///   magic, Hello{version, self, nonce} ->
///                                       <- magic, Challenge{version, self, nonce} or Refusal
///   Proof{hmac}                         ->
///                                       <- Welcome{hmac} or Refusal
///
/// Every message is proto/transport.proto behind 4 bytes of length, at most kHelloBytesMax. Where
/// there is TLS, the name that each end gives must be in its certificate.
constexpr size_t kHelloBytesMax = 4096;

/// Errors: kFailedPrecondition when one end refuses the other, in one line that says why;
/// kUnavailable when the peer breaks off or the deadline passes; kDataLoss for bytes that are no
/// hello. The stream is of no more use after one.
Result<NodeIdentity> say_hello(ByteStream& stream, const Credentials& credentials, Purpose purpose,
                               RandomBytes& random, Deadline deadline);

struct HelloAnswer {
  NodeIdentity peer;
  Purpose purpose = Purpose::kControl;
};
/// The acceptor's side; a refusal is sent to the peer and returned.
Result<HelloAnswer> answer_hello(ByteStream& stream, const Credentials& credentials,
                                 RandomBytes& random, Deadline deadline);

/// The first byte of a connector's hello, by which a node that wants TLS tells plain text from it.
constexpr unsigned char kHelloFirstByte = 0x89;
/// In place of answer_hello(): tells a connector why it is refused before it was read.
void refuse_hello(ByteStream& stream, std::string_view reason, Deadline deadline);

}  // namespace percheron

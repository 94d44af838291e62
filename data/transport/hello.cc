#include "data/transport/hello.h"

#include <algorithm>
#include <array>

#include "data/transport/frame_length.h"
#include "data/transport/host_name.h"
#include "proto/transport.pb.h"

namespace percheron {
namespace {

// Not text, so that no other protocol begins so, and with line ends that a text filter would spoil.
constexpr std::string_view kMagic = "\x89PERCH\r\n";
static_assert(static_cast<unsigned char>(kMagic[0]) == kHelloFirstByte);
constexpr size_t kNonceBytes = 32;
constexpr size_t kVersionCharactersMax = 100;
constexpr size_t kReasonCharactersMax = 400;
constexpr char kTlsHandshakeRecord = 0x16;

// One printable line, whatever a peer that nobody knows has sent.
std::string printable(std::string_view text, size_t characters_max) {
  std::string line(text.substr(0, characters_max));
  std::ranges::replace_if(
      line, [](char c) { return c < ' ' || c > '~'; }, '?');
  return line;
}

Status write_message(ByteStream& stream, std::string_view message, Deadline deadline) {
  const auto length = encode_length(message.size());
  std::string bytes(length.begin(), length.end());
  bytes.append(message);
  return stream.write(std::as_bytes(std::span(bytes)), deadline);
}

Result<std::string> read_message(ByteStream& stream, Deadline deadline) {
  std::array<char, kLengthBytes> length;
  PERCHERON_RETURN_IF_ERROR(
      read_exactly(stream, std::as_writable_bytes(std::span(length)), deadline));
  const size_t size = decode_length(length);
  PERCHERON_RETURN_IF_ERROR(check_incoming_length(size, kHelloBytesMax, stream.peer()));
  std::string message(size, '\0');
  PERCHERON_RETURN_IF_ERROR(
      read_exactly(stream, std::as_writable_bytes(std::span(message)), deadline));
  return message;
}

template <class Message>
Status parse(const std::string& bytes, const ByteStream& stream, Message& message) {
  if (message.ParseFromString(bytes)) return ok_status();
  return data_loss(stream.peer() + " sends a damaged hello");
}

Status write_magic(ByteStream& stream, Deadline deadline) {
  return stream.write(std::as_bytes(std::span(kMagic)), deadline);
}

Status read_magic(ByteStream& stream, Deadline deadline) {
  std::array<char, kMagic.size()> magic;
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(magic));
  // By the first byte, so that a foreign protocol's short greeting is not waited on.
  PERCHERON_RETURN_IF_ERROR(read_exactly(stream, bytes.first(1), deadline));
  if (magic[0] == kTlsHandshakeRecord && stream.tls_peer() == nullptr) {
    return failed_precondition(stream.peer() + " speaks TLS, and this node was started with " +
                               "--insecure");
  }
  if (magic[0] == kMagic[0]) {
    PERCHERON_RETURN_IF_ERROR(read_exactly(stream, bytes.subspan(1), deadline));
    if (std::string_view(magic.data(), magic.size()) == kMagic) return ok_status();
  }
  return data_loss(stream.peer() + " does not speak Percheron's protocol");
}

std::string fresh_nonce(RandomBytes& random) {
  std::string nonce(kNonceBytes, '\0');
  random.fill(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

void set_identity(const NodeIdentity& self, proto::Identity& identity) {
  identity.set_name(self.name);
  identity.set_node_uuid(self.node_uuid);
  identity.set_incarnation_uuid(self.incarnation_uuid);
  if (self.ucx) identity.set_ucx(true);
}

// Both versions and identities are checked alike in Hello and Challenge.
template <class Message>
Result<NodeIdentity> check_introduction(const Message& message, const ByteStream& stream,
                                        const Credentials& credentials) {
  const std::string build = printable(message.build_version(), kVersionCharactersMax);
  if (message.protocol_version() != kProtocolVersion) {
    return failed_precondition(
        stream.peer() + " (Percheron " + build + ") speaks protocol version " +
        std::to_string(message.protocol_version()) + ", this end (Percheron " +
        printable(credentials.self.build_version, kVersionCharactersMax) + ") version " +
        std::to_string(kProtocolVersion) + "; install the same Percheron on both");
  }
  const proto::Identity& self = message.self();
  if (!is_host_name(self.name()) || !is_uuid(self.node_uuid()) ||
      !is_uuid(self.incarnation_uuid()) || message.nonce().size() != kNonceBytes) {
    return data_loss(stream.peer() + " sends a damaged hello");
  }
  if (stream.tls_peer() != nullptr && !stream.tls_peer()->has_name(self.name())) {
    return failed_precondition(stream.peer() + " calls itself " + self.name() +
                               ", and its certificate is not for that name");
  }
  return NodeIdentity{self.name(), self.node_uuid(), self.incarnation_uuid(), build, self.ucx()};
}

// What a proof is over. Who proves is part of it, so that no end can send the other's proof back.
std::string transcript(std::string_view prover, const ByteStream& stream, std::string_view hello,
                       std::string_view challenge) {
  std::string text = "percheron hello 1";
  const std::string_view binding =
      stream.tls_peer() == nullptr ? std::string_view() : stream.tls_peer()->channel_binding;
  for (const std::string_view part : {prover, binding, hello, challenge}) {
    const auto length = encode_length(part.size());
    text.append(length.begin(), length.end());
    text.append(part);
  }
  return text;
}

std::string proof_of(const ClusterSecret& secret, const std::string& transcript) {
  const ClusterSecret::Digest digest = secret.authenticate(transcript);
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Status refused_by(const ByteStream& stream, const proto::Refusal& refusal) {
  return failed_precondition(stream.peer() + " refuses the connection: " +
                             printable(refusal.reason(), kReasonCharactersMax));
}

void send_refusal(ByteStream& stream, std::string_view reason, Deadline deadline) {
  proto::HelloReply reply;
  reply.mutable_refusal()->set_reason(printable(reason, kReasonCharactersMax));
  if (write_message(stream, reply.SerializeAsString(), deadline).ok()) stream.finish();
}

constexpr std::string_view kConnector = "connector";
constexpr std::string_view kAcceptor = "acceptor";
constexpr std::string_view kOtherSecret =
    "the cluster secrets of both ends differ; give all nodes the same cluster.secret";

proto::Hello::Purpose wire_purpose(Purpose purpose) {
  switch (purpose) {
    case Purpose::kControl: return proto::Hello::CONTROL;
    case Purpose::kBulk: return proto::Hello::BULK;
    case Purpose::kCli: return proto::Hello::CLI;
  }
  return proto::Hello::UNKNOWN;
}

Result<Purpose> purpose_of(const proto::Hello& hello, const ByteStream& stream) {
  switch (hello.purpose()) {
    case proto::Hello::CONTROL: return Purpose::kControl;
    case proto::Hello::BULK: return Purpose::kBulk;
    case proto::Hello::CLI: return Purpose::kCli;
    default: return data_loss(stream.peer() + " does not say what its connection is for");
  }
}

// How far the acceptor has come.
enum class Stage { kSilent, kGreeted };

// Leaves in `stage` whether the peer has seen our magic.
Result<HelloAnswer> answer(ByteStream& stream, const Credentials& credentials, RandomBytes& random,
                           Deadline deadline, Stage& stage) {
  PERCHERON_RETURN_IF_ERROR(read_magic(stream, deadline));
  PERCHERON_ASSIGN_OR_RETURN(const std::string hello_bytes, read_message(stream, deadline));
  proto::Hello hello;
  PERCHERON_RETURN_IF_ERROR(parse(hello_bytes, stream, hello));
  HelloAnswer result;
  PERCHERON_ASSIGN_OR_RETURN(result.peer, check_introduction(hello, stream, credentials));
  PERCHERON_ASSIGN_OR_RETURN(result.purpose, purpose_of(hello, stream));

  proto::HelloReply reply;
  proto::Challenge& challenge = *reply.mutable_challenge();
  challenge.set_protocol_version(kProtocolVersion);
  challenge.set_build_version(credentials.self.build_version);
  set_identity(credentials.self, *challenge.mutable_self());
  challenge.set_nonce(fresh_nonce(random));
  const std::string challenge_bytes = reply.SerializeAsString();
  stage = Stage::kGreeted;
  PERCHERON_RETURN_IF_ERROR(write_magic(stream, deadline));
  PERCHERON_RETURN_IF_ERROR(write_message(stream, challenge_bytes, deadline));

  PERCHERON_ASSIGN_OR_RETURN(const std::string proof_bytes, read_message(stream, deadline));
  proto::Proof proof;
  PERCHERON_RETURN_IF_ERROR(parse(proof_bytes, stream, proof));
  if (!credentials.secret.verify(transcript(kConnector, stream, hello_bytes, challenge_bytes),
                                 proof.hmac())) {
    return failed_precondition(std::string(kOtherSecret));
  }
  proto::HelloReply welcome;
  welcome.mutable_welcome()->set_hmac(
      proof_of(credentials.secret, transcript(kAcceptor, stream, hello_bytes, challenge_bytes)));
  PERCHERON_RETURN_IF_ERROR(write_message(stream, welcome.SerializeAsString(), deadline));
  return result;
}

}  // namespace

std::string_view purpose_name(Purpose purpose) {
  switch (purpose) {
    case Purpose::kControl: return "control";
    case Purpose::kBulk: return "bulk";
    case Purpose::kCli: return "cli";
  }
  return "unknown";
}

Result<NodeIdentity> say_hello(ByteStream& stream, const Credentials& credentials, Purpose purpose,
                               RandomBytes& random, Deadline deadline) {
  proto::Hello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_build_version(credentials.self.build_version);
  set_identity(credentials.self, *hello.mutable_self());
  hello.set_nonce(fresh_nonce(random));
  hello.set_purpose(wire_purpose(purpose));
  const std::string hello_bytes = hello.SerializeAsString();
  PERCHERON_RETURN_IF_ERROR(write_magic(stream, deadline));
  PERCHERON_RETURN_IF_ERROR(write_message(stream, hello_bytes, deadline));

  PERCHERON_RETURN_IF_ERROR(read_magic(stream, deadline));
  PERCHERON_ASSIGN_OR_RETURN(const std::string challenge_bytes, read_message(stream, deadline));
  proto::HelloReply reply;
  PERCHERON_RETURN_IF_ERROR(parse(challenge_bytes, stream, reply));
  if (reply.has_refusal()) return refused_by(stream, reply.refusal());
  if (!reply.has_challenge()) return data_loss(stream.peer() + " answers a hello out of order");
  PERCHERON_ASSIGN_OR_RETURN(NodeIdentity peer,
                             check_introduction(reply.challenge(), stream, credentials));

  proto::Proof proof;
  proof.set_hmac(
      proof_of(credentials.secret, transcript(kConnector, stream, hello_bytes, challenge_bytes)));
  PERCHERON_RETURN_IF_ERROR(write_message(stream, proof.SerializeAsString(), deadline));

  PERCHERON_ASSIGN_OR_RETURN(const std::string welcome_bytes, read_message(stream, deadline));
  proto::HelloReply welcome;
  PERCHERON_RETURN_IF_ERROR(parse(welcome_bytes, stream, welcome));
  if (welcome.has_refusal()) return refused_by(stream, welcome.refusal());
  if (!welcome.has_welcome() ||
      !credentials.secret.verify(transcript(kAcceptor, stream, hello_bytes, challenge_bytes),
                                 welcome.welcome().hmac())) {
    return failed_precondition(stream.peer() + ": " + std::string(kOtherSecret));
  }
  return peer;
}

Result<HelloAnswer> answer_hello(ByteStream& stream, const Credentials& credentials,
                                 RandomBytes& random, Deadline deadline) {
  Stage stage = Stage::kSilent;
  Result<HelloAnswer> result = answer(stream, credentials, random, deadline, stage);
  // Only who speaks our protocol, or TLS to a node that doesn't, is told why.
  if (!result.ok() && result.status().code() == StatusCode::kFailedPrecondition) {
    if (stage == Stage::kSilent) {
      refuse_hello(stream, result.status().message(), deadline);
    } else {
      send_refusal(stream, result.status().message(), deadline);
    }
  }
  return result;
}

void refuse_hello(ByteStream& stream, std::string_view reason, Deadline deadline) {
  // Whoever is refused may be gone already.
  if (write_magic(stream, deadline).ok()) send_refusal(stream, reason, deadline);
}

}  // namespace percheron

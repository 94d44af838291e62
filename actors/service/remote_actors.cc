#include "actors/service/remote_actors.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "actors/service/message_fields.h"

namespace percheron {
namespace {

template <class... Types>
struct TypeList {};

// What actors of different processes tell each other.
using RemoteMessages =
    TypeList<Begin, TargetIdle, Produce, Produced, Take, TakeTicket, Computed, Reduce, Reduced,
             Apply, Applied, Evaluate, Evaluated, TakeSnapshot, SnapshotTaken, WriteCheckpoint,
             CheckpointWritten, SetAside, KeepHeldOut, Failed, Unreadable, ReduceFailed, Regroup,
             Regrouped, Restore, Restored>;

template <class Message>
std::string name_of() {
  FieldWriter writer;
  Message message;
  inspect(writer, message);
  return writer.type();
}

struct RemoteAddress {
  proto::ActorMessage::Role role;
  int number;
};

template <class Message>
auto forwarder(const RemoteAddress& address, const SendActorMessage& send) {
  return [address, send, name = name_of<Message>()](const Message& message) {
    proto::ActorMessage out;
    out.set_role(address.role);
    out.set_number(address.number);
    out.set_type(name);
    Message copy = message;  // inspect() takes what it may change
    out.set_fields(FieldWriter::encode(copy));
    send(std::move(out));
  };
}

template <class... Types>
caf::behavior forwarders(TypeList<Types...>, const RemoteAddress& address,
                         const SendActorMessage& send) {
  return {forwarder<Types>(address, send)...};
}

using Decoder = bool (*)(const std::string& fields, const caf::actor& to);

template <class Message>
bool decode_and_send(const std::string& fields, const caf::actor& to) {
  Message message;
  if (!FieldReader::decode(fields, message)) return false;
  caf::anon_send(to, std::move(message));
  return true;
}

template <class... Types>
std::map<std::string, Decoder> decoders(TypeList<Types...>) {
  return {{name_of<Types>(), &decode_and_send<Types>}...};
}

// The actor of a message, or none.
caf::actor addressee(const proto::ActorMessage& message, const Peers& peers) {
  switch (message.role()) {
    case proto::ActorMessage::SUPERVISOR: return peers.supervisor;
    case proto::ActorMessage::SAMPLER: return peers.sampler;
    case proto::ActorMessage::MAILBOX: return peers.mailbox;
    case proto::ActorMessage::TARGET: return peers.targets[message.number()];
    case proto::ActorMessage::TRAINER: return peers.trainers[message.number()];
  }
  return {};
}

}  // namespace

caf::actor start_remote_actor(caf::actor_system& system, proto::ActorMessage::Role role, int number,
                              SendActorMessage send) {
  const RemoteAddress address{role, number};
  return system.spawn([address, send = std::move(send)](caf::event_based_actor* self) {
    log_unexpected_messages(self, "a remote actor");
    return forwarders(RemoteMessages{}, address, send);
  });
}

Status deliver(const proto::ActorMessage& message, const Peers& peers) {
  static const std::map<std::string, Decoder> known = decoders(RemoteMessages{});
  const auto decoder = known.find(message.type());
  if (decoder == known.end()) {
    return invalid_argument(
        fmt::format("a message of type '{}', which actors do not send", message.type()));
  }
  const caf::actor to = addressee(message, peers);
  if (!to) {
    return invalid_argument(fmt::format("a message {} for {} {}, which is not here", message.type(),
                                        proto::ActorMessage::Role_Name(message.role()),
                                        message.number()));
  }
  if (!decoder->second(message.fields(), to)) {
    return invalid_argument(fmt::format("a message {} whose fields can't be read", message.type()));
  }
  return ok_status();
}

}  // namespace percheron

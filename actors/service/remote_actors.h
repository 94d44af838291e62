#pragma once

// Actors of other processes. Only for the files that implement actors: CAF's headers compile
// slowly.

#include <functional>
#include <string>

#include "actors/actor_system.h"
#include "base/status.h"
#include "proto/control.pb.h"

namespace percheron {

/// Sends an actor's message on its way. Any thread; returns at once.
using SendActorMessage = std::function<void(proto::ActorMessage)>;

/// An actor that stands for one in another process: whatever it is told is sent there. `number` is
/// a target's or trainer's, else 0.
caf::actor start_remote_actor(caf::actor_system& system, proto::ActorMessage::Role role, int number,
                              SendActorMessage send);

/// Hands a message from another process to the actor that it is for. kInvalidArgument for a type,
/// role or number that does not exist and for fields that can't be read.
Status deliver(const proto::ActorMessage& message, const Peers& peers);

}  // namespace percheron

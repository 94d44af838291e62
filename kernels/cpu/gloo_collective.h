#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "kernels/collective.h"
#include "kernels/rendezvous.h"

namespace percheron {

/// How the members of a group reach each other.
struct GlooOptions {
  /// A network interface of this machine (eth0) or one of its addresses (10.0.0.3, fd00::3), to
  /// which alone the sockets are bound: `cluster.collective_interface`. What they carry is neither
  /// encrypted nor authenticated, and whoever reaches them can end the process: a private network.
  std::string interface = "127.0.0.1";
  /// How long an operation waits without anything coming from the member that is due.
  std::chrono::milliseconds operation_limit{30'000};
  /// How long join() waits for the members to come.
  std::chrono::milliseconds join_limit{30'000};
};

/// Groups of members in different processes, over TCP by Gloo; they find each other in `store`,
/// which all members of a run share. Each join() writes keys of its own membership, and opens
/// sockets that listen only until the group stands; ports are the system's choice.
///
/// Sums: every rank receives its share of the values from all others, adds them in rank order and
/// sends the sum back. No order depends on time, so that the bits are the same on every rank, in
/// every run, and those of make_local_collectives(). Each object keeps up to 8 MiB of scratch
/// memory.
///
/// A member that dies ends the others' pending and later calls in milliseconds, one that hangs
/// within `operation_limit`, both with kUnavailable. What a failed call leaves in `values` is
/// garbage: parts may be sums. A call that succeeded may have failed on another member. The failed
/// object is closed; a new membership with fewer members is joined at once. No membership is
/// joined twice by a member (kFailedPrecondition). A join that is abandoned ends within a moment
/// while members are missing, within seconds if one dies while they connect.
///
/// kInvalidArgument for an interface or address that this machine does not have.
Result<std::unique_ptr<CollectiveFactory>> make_gloo_collective_factory(
    const GlooOptions& options, std::shared_ptr<RendezvousStore> store);

}  // namespace percheron

#pragma once

#include <signal.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "kernels/rendezvous.h"

namespace gloo::rendezvous {
class Context;
}
namespace gloo::transport {
class Device;
}

namespace percheron {

/// Holds back SIGPIPE in this thread, which a write to a member that died raises, and takes back
/// those that came meanwhile. A thread started meanwhile holds it back for good.
class NoBrokenPipeSignal {
 public:
  NoBrokenPipeSignal();
  ~NoBrokenPipeSignal();
  NoBrokenPipeSignal(const NoBrokenPipeSignal&) = delete;
  NoBrokenPipeSignal& operator=(const NoBrokenPipeSignal&) = delete;

 private:
  sigset_t before_;
  bool was_pending_ = false;
};

/// What Gloo says of a failure, without the place in its sources.
std::string gloo_message(const std::exception& error);

/// Gloo's sockets and their thread on `interface`, as GlooOptions has it.
Result<std::shared_ptr<gloo::transport::Device>> open_gloo_device(const std::string& interface);

/// How long members wait for each other. `abandoned` is asked several times a second.
struct JoinLimits {
  std::chrono::milliseconds limit;
  std::function<bool()> abandoned;
};

/// Connects `context` with all other ranks of `membership`, which find each other in `store`.
/// kUnavailable if one does not come within the limit, or once it is abandoned; the store's own
/// errors.
Status connect_all(gloo::rendezvous::Context& context,
                   std::shared_ptr<gloo::transport::Device> device, RendezvousStore& store,
                   int64_t membership, const JoinLimits& limits);

}  // namespace percheron

#include "kernels/cpu/gloo_network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
// Gloo never frees the list of addresses that it asks the system for.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT
  return "leak:gloo::transport::tcp::CreateDeviceAttr";
}
#endif

namespace percheron {
namespace {

using Milliseconds = std::chrono::milliseconds;

bool is_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> address;
  return inet_pton(AF_INET, text.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
}

std::string interface_names() {
  std::string names;
  struct if_nameindex* const all = if_nameindex();
  if (all == nullptr) return "unknown";
  for (const struct if_nameindex* one = all; one->if_index != 0; ++one) {
    names += (names.empty() ? "" : ", ") + std::string(one->if_name);
  }
  if_freenameindex(all);
  return names;
}

// Between two looks whether a join was abandoned.
constexpr Milliseconds kStoreWait{100};
// All members have come: they connect within milliseconds, unless one dies just then.
constexpr Milliseconds kConnectLimit{5'000};

/// Gloo's view of a store: its failures are exceptions. Keeps the first failure.
class StoreOfMembership final : public gloo::rendezvous::Store {
 public:
  StoreOfMembership(RendezvousStore& store, int size, int64_t membership, const JoinLimits& limits)
      : store_(store),
        size_(size),
        prefix_(fmt::format("membership-{}.", membership)),
        limits_(limits),
        end_(std::chrono::steady_clock::now() + limits.limit) {}

  const Status& failure() const { return failure_; }

  void set(const std::string& key, const std::vector<char>& data) override {
    const Status status = store_.set(full_key(key), {data.data(), data.size()});
    if (!status.ok()) fail(status);
  }

  /// A rank's address is given out once all are there: Gloo's wait for a connection can't be
  /// abandoned.
  std::vector<char> get(const std::string& key) override {
    if (!is_rank(key)) {
      const std::string value = wait_for(full_key(key));
      return {value.begin(), value.end()};
    }
    while (static_cast<int>(values_.size()) < size_) {
      values_.push_back(wait_for(full_key(std::to_string(values_.size()))));
    }
    const std::string& value = values_.at(static_cast<size_t>(std::stoi(key)));
    return {value.begin(), value.end()};
  }

  // get() waits.
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const Milliseconds&) override {}

 private:
  static bool is_rank(const std::string& key) {
    return key.find_first_not_of("0123456789") == std::string::npos;
  }

  /// Of a rank's address, or of its host's name, which comes before.
  std::string full_key(const std::string& key) const {
    return prefix_ + (is_rank(key) ? "rank-" : "host-of-") + key;
  }

  std::string wait_for(const std::string& key) {
    for (;;) {
      const Milliseconds left =
          std::chrono::duration_cast<Milliseconds>(end_ - std::chrono::steady_clock::now());
      Result<std::string> value = store_.get(key, std::clamp(left, Milliseconds(0), kStoreWait));
      if (value.ok()) return std::move(*value);
      if (limits_.abandoned()) fail(unavailable("the membership was abandoned"));
      if (value.status().code() != StatusCode::kUnavailable) fail(value.status());
      if (left <= Milliseconds(0)) {
        fail(unavailable(fmt::format("{} did not come within {} ms: {}", key, limits_.limit.count(),
                                     value.status().message())));
      }
    }
  }

  [[noreturn]] void fail(const Status& status) {
    failure_ = status;
    throw gloo::IoException(status.message());  // Caught in connect_all().
  }

  RendezvousStore& store_;
  const int size_;
  const std::string prefix_;
  const JoinLimits& limits_;
  const std::chrono::steady_clock::time_point end_;
  std::vector<std::string> values_;
  Status failure_;
};

}  // namespace

NoBrokenPipeSignal::NoBrokenPipeSignal() {
  sigset_t pipe, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGPIPE) == 1;
  const int failed = pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  PERCHERON_CHECK(failed == 0, "pthread_sigmask refused SIGPIPE");
}

NoBrokenPipeSignal::~NoBrokenPipeSignal() {
  if (sigismember(&before_, SIGPIPE) == 1) return;
  if (!was_pending_) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    const timespec at_once{};
    while (sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::string gloo_message(const std::exception& error) {
  std::string text = error.what();
  if (text.starts_with('[') && text.find("] ") != std::string::npos) {
    text.erase(0, text.find("] ") + 2);
  }
  std::ranges::replace(text, '\n', ' ');
  return text;
}

Result<std::shared_ptr<gloo::transport::Device>> open_gloo_device(const std::string& interface) {
  gloo::transport::tcp::attr where;
  if (is_address(interface)) {
    where.hostname = interface;
  } else if (!interface.empty() && if_nametoindex(interface.c_str()) != 0) {
    where.iface = interface;
  } else {
    return invalid_argument(
        fmt::format("cluster.collective_interface is '{}', which is no numeric address and no "
                    "network interface of this machine; it has {}",
                    interface, interface_names()));
  }
  const NoBrokenPipeSignal no_signal;  // Gloo's thread inherits it.
  try {
    return gloo::transport::tcp::CreateDevice(where);
  } catch (const std::exception& error) {
    return invalid_argument(fmt::format("can't bind to cluster.collective_interface '{}': {}",
                                        interface, gloo_message(error)));
  }
}

Status connect_all(gloo::rendezvous::Context& context,
                   std::shared_ptr<gloo::transport::Device> device, RendezvousStore& store,
                   int64_t membership, const JoinLimits& limits) {
  StoreOfMembership of_membership(store, context.size, membership, limits);
  const NoBrokenPipeSignal no_signal;
  try {
    context.setTimeout(kConnectLimit);
    context.connectFullMesh(of_membership, device);
  } catch (const std::exception& error) {
    if (!of_membership.failure().ok()) return of_membership.failure();
    return unavailable("can't connect: " + gloo_message(error));
  }
  return ok_status();
}

}  // namespace percheron

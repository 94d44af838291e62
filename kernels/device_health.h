#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace percheron {

/// What a card says of itself at one moment. What it, its driver or its settings do not tell is
/// absent.
struct CardHealth {
  std::optional<double> utilization;  // share of the driver's last sampling period with a kernel
  std::optional<uint64_t> memory_used_bytes, memory_bytes;
  std::optional<double> power_watts, power_limit_watts;
  std::optional<int> temperature_celsius;
  std::optional<uint64_t> ecc_corrected, ecc_uncorrected;  // since the driver was loaded
  /// NVIDIA's number of the newest critical error (Xid) since the monitor was opened, 0 for none.
  std::optional<uint64_t> last_xid;
};

struct Card {
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-...", which CUDA_VISIBLE_DEVICES takes; empty if it is not told
};

/// Watches the cards of this machine. Asks the driver, never the device: it disturbs no stream.
/// Used by one thread at a time.
class HealthMonitor {
 public:
  virtual ~HealthMonitor() = default;
  /// In the driver's order, which need not be that of cuda:N: compare uuids.
  virtual const std::vector<Card>& cards() const = 0;
  /// `card` is an index of cards(). kUnavailable if the card has fallen off the bus.
  virtual Result<CardHealth> read(size_t card) = 0;
};

/// NVIDIA's cards by NVML, which comes with the driver and is looked for now, at run time.
/// kNotFound says in one line that the library is missing or has no driver to talk to.
Result<std::unique_ptr<HealthMonitor>> open_nvml_monitor(
    const std::string& library = "libnvidia-ml.so.1");

}  // namespace percheron

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device_health.h"

namespace percheron {

/// What decides which of the driver's cards cuda:N is: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER;
/// null where they are not set.
struct CudaOrder {
  const char* visible = nullptr;
  const char* order = nullptr;
};
/// The index in `cards` of cuda:`number`; none where that is not certain, as among cards of several
/// kinds, which CUDA puts in an order of its own.
std::optional<size_t> card_of(int number, const std::vector<Card>& cards, const CudaOrder& order);

/// Reads the state of devices by their names. Used by one thread at a time.
class CardReader {
 public:
  /// NVIDIA's cards, in the order of this process's environment. Errors as open_nvml_monitor().
  static Result<std::unique_ptr<CardReader>> open();
  CardReader(std::unique_ptr<HealthMonitor> monitor, CudaOrder order)
      : monitor_(std::move(monitor)), order_(order) {}

  /// Nothing for what is no "cuda:N", a card that is not certain, or one that is lost.
  std::optional<CardHealth> read(const std::string& device);

 private:
  const std::unique_ptr<HealthMonitor> monitor_;
  const CudaOrder order_;
};

}  // namespace percheron

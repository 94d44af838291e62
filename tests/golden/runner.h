#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"

namespace percheron::golden {

/// The largest absolute difference of one tensor, and what the case allows.
struct Difference {
  std::string tensor;
  double largest = 0;
  double tolerance = 0;
};

/// What running one golden case showed. It passes if every difference is within its tolerance.
struct Report {
  std::vector<Difference> differences;
  bool passed() const;
};

/// Runners by kind, each in its own file. `path` is the file that was named on the command line,
/// `device_id` where the case runs if it needs a device.
Result<Report> run_target_forward(const std::string& path, DeviceId device_id);  // target_cases.cc
Result<Report> run_unsupported_target(
    const std::string& path, DeviceId device_id);  // passes when refused naming key and value
Result<Report> run_greedy_generation(const std::string& path,
                                     DeviceId device_id);  // generation_cases.cc
Result<Report> run_speculative_acceptance(const std::string& path, DeviceId device_id);
Result<Report> run_adamw(const std::string& path, DeviceId device_id);  // optimizer_cases.cc
Result<Report> run_muon(const std::string& path, DeviceId device_id);
Result<Report> run_lr_schedules(const std::string& path, DeviceId device_id);
Result<Report> run_eagle3_step(const std::string& path, DeviceId device_id);  // drafter_cases.cc
Result<Report> run_dflash_step(const std::string& path, DeviceId device_id);

}  // namespace percheron::golden

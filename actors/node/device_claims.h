#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/device.h"

namespace percheron {

/// "cuda:0" of each.
std::vector<std::string> device_names(const std::vector<DeviceId>& devices);

/// Which run each device of a node is of: from the order that gives it the device until it has done
/// with it, also while its process there is started again. Devices are "cuda:0"; times are seconds
/// of one clock. Not thread-safe.
class DeviceClaims {
 public:
  /// For so long an order may take to start a worker on what it has reserved.
  static constexpr double kReservedSeconds = 600;

  /// `run`, of the supervisor on `node`, will start workers on these devices, before the time is
  /// over. All or none: kFailedPrecondition names the device that another run has.
  Status reserve(const std::string& run, const std::string& node,
                 const std::vector<std::string>& devices, double now);
  /// The order is over: what was reserved and has no worker is free again.
  void release_reserved(const std::string& run, const std::vector<std::string>& devices);

  /// The run has a worker there from now on; errors as reserve().
  Status take(const std::string& run, const std::string& node,
              const std::vector<std::string>& devices, double now);
  /// It has done with these, or with all that the supervisor on `node` took for it.
  void release(const std::string& run, const std::vector<std::string>& devices);
  void release_all(const std::string& run, const std::string& node);
  /// The supervisors of that node are lost.
  void node_lost(const std::string& node);

  /// The run of each device that has one.
  std::map<std::string, std::string> owners(double now) const;

 private:
  struct Claim {
    std::string run, node;
    double reserved_until = 0;  // 0: it has a worker
  };

  Status check(const std::string& run, const std::vector<std::string>& devices, double now) const;

  std::map<std::string, Claim> claims_;
};

}  // namespace percheron

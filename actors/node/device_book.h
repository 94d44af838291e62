#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.h"
#include "proto/control.pb.h"

namespace percheron {

/// What is known of a machine's devices, by their names.
using DeviceFactsMap = std::map<std::string, proto::DeviceFacts>;

/// Reads what `percheron inspect --devices --json` prints.
Result<DeviceFactsMap> parse_devices(const std::string& json);

/// The devices of this machine. They are looked for once, by a process of its own: whoever opens a
/// GPU holds memory there until it ends. What changes is asked from the driver now and then.
/// Thread-safe.
class DeviceBook {
 public:
  /// `program`: the percheron executable. Nothing is known yet when it returns.
  explicit DeviceBook(std::string program);
  ~DeviceBook();

  DeviceFactsMap devices() const;

 private:
  void watch();
  Result<std::string> ask_program();

  const std::string program_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  pid_t child_ = -1;  // that looks for devices now
  DeviceFactsMap devices_;
  std::thread watcher_;  // last: it uses the others
};

}  // namespace percheron

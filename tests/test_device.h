#pragma once

#include <cstdlib>

#include "kernels/device.h"

namespace percheron {

/// The device that tests of kernels and models run on: PERCHERON_TEST_DEVICE, else cpu:0.
inline DeviceId test_device() {
  const char* name = std::getenv("PERCHERON_TEST_DEVICE");
  return parse_device_id(name == nullptr || *name == 0 ? "cpu:0" : name).value();
}

}  // namespace percheron

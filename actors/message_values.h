#pragma once

// What messages carry beside plain numbers and strings.

#include <cstdint>
#include <string>

#include "actors/compat.h"
#include "actors/policy/step_plan.h"
#include "actors/policy/ticket.h"
#include "base/status.h"

namespace percheron {

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, MicroBatchId& x) {
  return f(caf::meta::type_name("MicroBatchId"), x.epoch, x.index);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Ticket& x) {
  return f(caf::meta::type_name("Ticket"), x.id, x.step, x.node, x.home, x.generation, x.bytes,
           x.region_bytes, x.crc32c, x.target);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PlannedStep& x) {
  return f(caf::meta::type_name("PlannedStep"), x.step, x.epoch, x.first, x.count);
}

/// A Status on its way between actors.
struct Outcome {
  int32_t code = 0;
  std::string message;

  static Outcome of(const Status& status) {
    return {static_cast<int32_t>(status.code()), status.message()};
  }
  bool ok() const { return code == 0; }
  Status status() const {
    return ok() ? ok_status() : Status(static_cast<StatusCode>(code), message);
  }
};
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, Outcome& x) {
  return f(caf::meta::type_name("Outcome"), x.code, x.message);
}

}  // namespace percheron

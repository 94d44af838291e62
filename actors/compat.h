#pragma once

// The only way to CAF: what differs between its releases is settled here. Debian's is 0.17.6.

#include <caf/all.hpp>

#include "base/log.h"

static_assert(CAF_MAJOR_VERSION == 0 && CAF_MINOR_VERSION == 17,
              "actors/compat.h is written for CAF 0.17");

namespace percheron {

/// Declares how CAF copies, compares and prints a message of these fields.
#define PERCHERON_MESSAGE(Type, ...)                                                               \
  template <class Inspector>                                                                       \
  typename Inspector::result_type inspect(Inspector& f, Type& x) {                                 \
    return std::apply([&f](auto&... fields) { return f(caf::meta::type_name(#Type), fields...); }, \
                      fields_of(x));                                                               \
  }

/// For every actor: what no handler takes is logged, never dropped in silence.
template <class Self>
void log_unexpected_messages(Self* self, const char* who) {
  self->set_default_handler(
      [who](caf::scheduled_actor*, caf::message_view& message) -> caf::result<caf::message> {
        log_warning("{} got a message that it does not know: {}", who,
                    caf::to_string(message.move_content_to_message()));
        return caf::sec::unexpected_message;
      });
}

}  // namespace percheron

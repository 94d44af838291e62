#include "data/transport/byte_stream.h"

#include <algorithm>

namespace percheron {

bool TlsPeer::has_name(std::string_view name) const {
  return std::ranges::find(names, name) != names.end();
}

Status ByteStream::write_parts(std::initializer_list<std::span<const std::byte>> parts,
                               Deadline deadline) {
  for (const std::span<const std::byte> part : parts) {
    PERCHERON_RETURN_IF_ERROR(write(part, deadline));
  }
  return ok_status();
}

Status read_exactly(ByteStream& stream, std::span<std::byte> into, Deadline deadline) {
  while (!into.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(const std::optional<size_t> count, stream.read_some(into, deadline));
    if (!count) return unavailable(stream.peer() + " did not answer in time");
    if (*count == 0) return unavailable(stream.peer() + " closed the connection");
    into = into.subspan(*count);
  }
  return ok_status();
}

}  // namespace percheron

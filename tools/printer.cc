#include "tools/printer.h"

#include <cerrno>
#include <cstring>

namespace percheron {

void Printer::write(std::string_view text) {
  if (!status_.ok()) return;
  const size_t written = std::fwrite(text.data(), 1, text.size(), out_);
  if (written == text.size() && std::fflush(out_) == 0) return;
  status_ = unavailable(fmt::format("the output can't be written: {}", std::strerror(errno)));
}

}  // namespace percheron

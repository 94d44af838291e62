#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace percheron {

/// How a part of a line looks; what that is on a terminal is the terminal's business.
enum class ScreenStyle { kPlain, kTitle, kLabel, kFaint, kGood, kWarning, kBad, kSelected };

/// One line of a screen: parts of printable ASCII, each in one style.
class ScreenLine {
 public:
  struct Part {
    ScreenStyle style;
    std::string text;
  };

  ScreenLine() = default;
  explicit ScreenLine(std::string_view text, ScreenStyle style = ScreenStyle::kPlain) {
    add(text, style);
  }

  /// What is no printable ASCII is shown as '?': names come from files and other machines.
  ScreenLine& add(std::string_view text, ScreenStyle style = ScreenStyle::kPlain);
  size_t width() const;
  /// To `width` columns at most; a line that was longer ends in '~', so that nobody takes a part of
  /// a number for all of it.
  void cut(size_t width);

  const std::vector<Part>& parts() const { return parts_; }
  /// Without styles and without blanks at its end.
  std::string text() const;

 private:
  std::vector<Part> parts_;
};

}  // namespace percheron

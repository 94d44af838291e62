#include "tools/screen_line.h"

#include <algorithm>

namespace percheron {

ScreenLine& ScreenLine::add(std::string_view text, ScreenStyle style) {
  std::string plain(text);
  std::ranges::replace_if(
      plain, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (!plain.empty()) parts_.push_back({style, std::move(plain)});
  return *this;
}

size_t ScreenLine::width() const {
  size_t width = 0;
  for (const Part& part : parts_) width += part.text.size();
  return width;
}

void ScreenLine::cut(size_t width) {
  if (text().size() <= width) {  // Blanks at the end are no loss.
    for (size_t left = width; Part & part : parts_) {
      part.text.resize(std::min(part.text.size(), left));
      left -= part.text.size();
    }
    return;
  }
  if (width == 0) return parts_.clear();
  size_t left = width - 1;
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::string& text = parts_[i].text;
    if (text.size() <= left) {
      left -= text.size();
      continue;
    }
    text.resize(left);
    text += '~';
    parts_.resize(i + 1);
    return;
  }
}

std::string ScreenLine::text() const {
  std::string text;
  for (const Part& part : parts_) text += part.text;
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace percheron

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace percheron {

/// A source file of the project: its path from the repository root, and its text.
struct SourceFile {
  std::string path;
  std::string text;
};

/// What is wrong with the includes of `file`: one upward in the order of the layers, or of a
/// library that its folder may not see. Each is "path:line: what".
std::vector<std::string> include_problems(const SourceFile& file);

/// What is wrong with the file's size, its functions' sizes, its guard, its folder's name, or marks
/// of unfinished work in it.
std::vector<std::string> shape_problems(const SourceFile& file);

/// `text` with comments blanked and literals emptied; line breaks stay.
std::string without_comments_and_literals(std::string_view text);

}  // namespace percheron

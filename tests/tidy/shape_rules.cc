#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <regex>

#include "tests/tidy/tidy_rules.h"

namespace percheron {
namespace {

constexpr size_t kFileLinesMax = 500;
constexpr int kFunctionLinesMax = 70;
constexpr std::array<std::string_view, 7> kFolderNames = {"src",    "common",  "utils", "util",
                                                          "helper", "helpers", "misc"};

bool is_cpp(std::string_view path) {
  return path.ends_with(".h") || path.ends_with(".cc") || path.ends_with(".cu") ||
         path.ends_with(".cuh");
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Blanks what lies in [begin, end) except line breaks.
void blank(std::string& text, size_t begin, size_t end) {
  for (size_t i = begin; i < std::min(end, text.size()); ++i) {
    if (text[i] != '\n') text[i] = ' ';
  }
}

// Past the end of the literal whose quote stands at `at`.
size_t literal_end(std::string_view text, size_t at) {
  const char quote = text[at];
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == quote || text[i] == '\n') {
      return i + 1;
    }
  }
  return text.size();
}

// Past the end of the raw string whose quote stands at `at`: R"mark( ... )mark".
size_t raw_string_end(std::string_view text, size_t at) {
  const size_t open = text.find('(', at);
  if (open == std::string_view::npos) return text.size();
  std::string close = ")";
  close.append(text.substr(at + 1, open - at - 1)) += '"';
  const size_t end = text.find(close, open);
  return end == std::string_view::npos ? text.size() : end + close.size();
}

enum class Block { kScope, kFunction, kOther };

// Without `template <...>` at the front, whose parameters say "class" too.
std::string_view without_template(std::string_view header) {
  for (;;) {
    while (!header.empty() && header.front() == ' ') header.remove_prefix(1);
    if (!header.starts_with("template")) return header;
    size_t at = header.find('<');
    if (at == std::string_view::npos) return header;
    int depth = 0;
    for (; at < header.size(); ++at) {
      if (header[at] == '<') ++depth;
      if (header[at] == '>' && --depth == 0) break;
    }
    header.remove_prefix(std::min(at + 1, header.size()));
  }
}

// Whether an "=" that is not part of "operator=" stands outside all parentheses.
bool assigns(std::string_view header) {
  int depth = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    if (header[i] == '(') ++depth;
    if (header[i] == ')') --depth;
    if (header[i] == '=' && depth == 0 && !header.substr(0, i).ends_with("operator") &&
        !header.substr(0, i).ends_with("operator=")) {
      return true;
    }
  }
  return false;
}

// What a brace opens, judged by the text since the last ";", "{" or "}" at namespace or class
// scope.
Block block_of(std::string_view header) {
  static const std::regex kScope(R"(^(inline\s+)?namespace\b|^extern\b\s*$|)"
                                 R"(^(typedef\s+|static\s+|const\s+)*(class|struct|union|enum)\b)");
  static const std::regex kAttribute(R"((alignas|__attribute__)\s*\([^{}]*\))");
  header = without_template(header);
  if (assigns(header)) return Block::kOther;
  const std::string text = std::regex_replace(std::string(header), kAttribute, "");
  const bool has_parentheses = text.find(')') != std::string::npos;
  if (std::regex_search(text, kScope) && !has_parentheses) return Block::kScope;
  return has_parentheses ? Block::kFunction : Block::kOther;
}

// Calls `report(first_line, line_count)` for each function of C++ `text` at namespace or class
// scope.
template <class Report>
void each_function(std::string_view text, Report report) {
  const std::string code = without_comments_and_literals(text);
  int line = 1, function_line = 0;
  int inner_depth = 0;  // Braces open inside the current function or initializer.
  Block block = Block::kScope;
  std::string header;
  bool line_is_directive = false, line_is_empty = true;
  for (size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    if (c == '\n') {
      ++line;
      const bool continues = line_is_directive && i > 0 && code[i - 1] == '\\';
      line_is_directive = continues;
      line_is_empty = true;
      header += ' ';
      continue;
    }
    if (c == '#' && line_is_empty) line_is_directive = true;
    if (c != ' ' && c != '\t') line_is_empty = false;
    if (line_is_directive) continue;
    if (inner_depth > 0) {
      if (c == '{') ++inner_depth;
      if (c == '}' && --inner_depth == 0) {
        if (block == Block::kFunction) report(function_line, line - function_line + 1);
        header.clear();
      }
    } else if (c == '{') {
      // After `a_{1}` among a constructor's initializers comes its next one or its body.
      const size_t first = header.find_first_not_of(" \t");
      const bool in_initializers =
          block == Block::kFunction && (first == std::string::npos || header[first] == ',');
      if (!in_initializers) block = block_of(header);
      if (block != Block::kScope) {
        inner_depth = 1;
        function_line = line;
      }
      header.clear();
    } else if (c == '}' || c == ';') {
      header.clear();
    } else {
      header += c;
    }
  }
}

void check_functions(const SourceFile& file, std::vector<std::string>& problems) {
  each_function(file.text, [&](int first_line, int line_count) {
    if (line_count <= kFunctionLinesMax) return;
    problems.push_back(file.path + ":" + std::to_string(first_line) + ": function of " +
                       std::to_string(line_count) + " lines, the limit is " +
                       std::to_string(kFunctionLinesMax));
  });
}

}  // namespace

std::string without_comments_and_literals(std::string_view text) {
  std::string code(text);
  for (size_t i = 0; i < code.size();) {
    size_t end = i + 1;
    if (text.substr(i).starts_with("//")) {
      end = std::min(text.find('\n', i), text.size());
      blank(code, i, end);
    } else if (text.substr(i).starts_with("/*")) {
      end = text.find("*/", i + 2);
      end = end == std::string_view::npos ? text.size() : end + 2;
      blank(code, i, end);
    } else if (text[i] == '"' && i > 0 && text[i - 1] == 'R') {
      end = raw_string_end(text, i);
      blank(code, i, end);
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !is_word(text[i - 1])))) {
      // A quote after a digit separates thousands: 1'000.
      end = literal_end(text, i);
      blank(code, i, end);
    }
    i = end;
  }
  return code;
}

std::vector<std::string> shape_problems(const SourceFile& file) {
  static const std::regex kMark(
      "\\b(TO"
      "DO|FIX"
      "ME|XX"
      "X)\\b");
  std::vector<std::string> problems;
  const auto line_count = static_cast<size_t>(std::ranges::count(file.text, '\n'));
  if (line_count > kFileLinesMax) {
    problems.push_back(file.path + ": " + std::to_string(line_count) + " lines, the limit is " +
                       std::to_string(kFileLinesMax));
  }
  if ((file.path.ends_with(".h") || file.path.ends_with(".cuh")) &&
      file.text.find("#pragma once\n") == std::string::npos) {
    problems.push_back(file.path + ": lacks #pragma once");
  }
  for (const std::string_view name : kFolderNames) {
    if (("/" + file.path).find("/" + std::string(name) + "/") != std::string::npos) {
      problems.push_back(file.path + ": a folder called " + std::string(name) + " says nothing");
    }
  }
  if (std::smatch match; std::regex_search(file.text, match, kMark)) {
    const auto line = 1 + std::count(file.text.begin(), match[0].first, '\n');
    problems.push_back(file.path + ":" + std::to_string(line) + ": unfinished: " + match.str());
  }
  if (is_cpp(file.path)) check_functions(file, problems);
  return problems;
}

}  // namespace percheron

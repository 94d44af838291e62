#include <algorithm>
#include <array>
#include <optional>
#include <regex>

#include "tests/tidy/tidy_rules.h"

namespace percheron {
namespace {

// Each layer sees those before it; proto is a leaf.
constexpr std::array<std::string_view, 6> kLayers = {"base",  "kernels", "data",
                                                     "model", "actors",  "tools"};

/// Where headers that match `pattern` may be included: in folders that start so.
struct Permission {
  std::regex pattern;
  std::vector<std::string_view> folders;
};

const std::vector<Permission>& permissions() {
  static const std::vector<Permission> kPermissions = {
      {std::regex("caf/.*"), {"actors/", "tests/actors/", "tests/sim/", "bench/actors"}},
      {std::regex("(prometheus/.*|civetweb\\.h)"), {"actors/", "tests/actors/"}},
      {std::regex("(oneapi/)?dnnl.*"), {"kernels/cpu/"}},
      {std::regex("omp\\.h"), {"kernels/cpu/"}},
      {std::regex("gloo/.*"), {"kernels/cpu/"}},
      {std::regex("(cuda|cublas|cudnn|nccl).*\\.h"), {"kernels/cuda/", "tests/device/"}},
      {std::regex("(google/protobuf/.*|proto/.*\\.pb\\.h)"),
       {"proto/", "data/", "actors/", "tools/", "tests/proto/", "tests/data/", "tests/actors/",
        "tests/tools/", "tests/sim/", "tests/golden/", "tests/fuzz/", "tests/e2e/", "bench/"}},
      {std::regex("(CLI/.*|yaml-cpp/.*)"), {"tools/", "tests/tools/"}},
      {std::regex("(openssl|ucp|ucs)/.*"), {"data/", "tests/data/", "bench/transport"}},
      {std::regex("xxhash\\.h"), {"base/"}},
      {std::regex("kernels/ops\\.h"),
       {"kernels/", "data/", "model/", "tools/", "tests/", "bench/"}},
      {std::regex("tests/.*"), {"tests/", "bench/"}},
      {std::regex("bench/.*"), {"bench/"}},
  };
  return kPermissions;
}

bool starts_with_any(std::string_view path, const std::vector<std::string_view>& folders) {
  return std::ranges::any_of(folders, [&](auto folder) { return path.starts_with(folder); });
}

// The layer's place in the order; none for a path outside the layers.
std::optional<size_t> rank_of(std::string_view path) {
  const std::string_view folder = path.substr(0, path.find('/'));
  const auto found = std::ranges::find(kLayers, folder);
  if (found == kLayers.end()) return std::nullopt;
  return static_cast<size_t>(found - kLayers.begin());
}

// Why a file at `path` may not include `header`; empty when it may.
std::string refusal(std::string_view path, const std::string& header) {
  for (const Permission& permission : permissions()) {
    if (std::regex_match(header, permission.pattern) &&
        !starts_with_any(path, permission.folders)) {
      return "may not include " + header;
    }
  }
  // The tests of a layer may see what the layer sees.
  std::string_view owner = path;
  for (const std::string_view prefix : {"tests/", "bench/"}) {
    if (owner.starts_with(prefix)) owner.remove_prefix(prefix.size());
  }
  const std::optional<size_t> from = rank_of(owner), to = rank_of(header);
  if (to && path.starts_with("proto/")) return "proto is a leaf and may not include " + header;
  if (from && to && *from < *to) return "includes " + header + ", which lies above it";
  return "";
}

}  // namespace

std::vector<std::string> include_problems(const SourceFile& file) {
  static const std::regex kInclude(R"re(^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">])re");
  static const std::regex kOpenMp(R"re(^[ \t]*#[ \t]*pragma[ \t]+omp\b)re");
  std::vector<std::string> problems;
  const auto report = [&](int line, const std::string& what) {
    problems.push_back(file.path + ":" + std::to_string(line) + ": " + what);
  };
  int number = 0;
  for (size_t at = 0; at < file.text.size();) {
    const size_t end = std::min(file.text.find('\n', at), file.text.size());
    const std::string line = file.text.substr(at, end - at);
    at = end + 1;
    ++number;
    std::smatch match;
    if (std::regex_search(line, kOpenMp) && !file.path.starts_with("kernels/cpu/")) {
      report(number, "OpenMP belongs to kernels/cpu");
    }
    if (!std::regex_search(line, match, kInclude)) continue;
    const std::string header = match[2];
    if (match[1] == "\"" && header.find('/') == std::string::npos) {
      report(number, "includes " + header + ", not by its path from the root");
    }
    if (const std::string why = refusal(file.path, header); !why.empty()) report(number, why);
  }
  return problems;
}

}  // namespace percheron

// golden_test [--device NAME] FILE|DIRECTORY...: runs golden cases on cpu:0, or the device that is
// named, and prints every tensor's largest difference.
// A directory is searched for cases. Exit status 0 if at least one case ran and all passed.

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/safetensors.h"
#include "tests/golden/runner.h"

namespace percheron::golden {
namespace {

namespace fs = std::filesystem;

constexpr int kDepthMax = 3;
constexpr std::string_view kChatMask = "chat_mask";

using Runner = Result<Report> (*)(const std::string&, DeviceId);

// By `kind`, or by `algorithm` in files that are older than the kinds.
const std::map<std::string, Runner, std::less<>>& runners() {
  static const std::map<std::string, Runner, std::less<>> table = {
      {"target_forward", run_target_forward},
      {"unsupported_target", run_unsupported_target},
      {"greedy_generation", run_greedy_generation},
      {"speculative_acceptance", run_speculative_acceptance},
      {"adamw", run_adamw},
      {"muon", run_muon},
      {"lr_schedules", run_lr_schedules},
      {"eagle3", run_eagle3_step},
      {"dflash", run_dflash_step},
  };
  return table;
}

struct Case {
  std::string kind, path;
};

// What the command line named, sorted out.
struct Found {
  std::vector<Case> cases;
  std::vector<std::string> errors;
  int skipped = 0;     // files that are no golden case
  int chat_masks = 0;  // cases of the Python runner
};

std::string kind_of_metadata(const std::map<std::string, std::string>& metadata) {
  for (const char* key : {"kind", "algorithm"}) {
    const auto found = metadata.find(key);
    if (found != metadata.end()) return found->second;
  }
  return "";
}

// What `call` returns, or what it throws: a foreign file ends its own case, not the others.
template <class T, class F>
Result<T> guarded(F&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return internal_error(error.what());
  }
}

// The kind of a file, "" if it is no golden case.
Result<std::string> kind_of_file(const std::string& path) {
  if (path.ends_with(".safetensors")) {
    PERCHERON_ASSIGN_OR_RETURN(const SafetensorsFile file,
                               SafetensorsFile::open(system_files(), path));
    return kind_of_metadata(file.metadata());
  }
  if (!path.ends_with(".json")) return std::string();
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, system_files().read_text(path));
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json object, parse_json(text, path));
  if (!object.is_object() || !object.contains("kind")) return std::string();
  return json_get<std::string>(object, "kind", path);
}

void add_file(const std::string& path, Found& found) {
  const Result<std::string> kind = guarded<std::string>([&] { return kind_of_file(path); });
  if (!kind.ok()) {
    found.errors.push_back(kind.status().message());
  } else if (kind->empty()) {
    ++found.skipped;
  } else if (*kind == kChatMask) {
    ++found.chat_masks;
  } else {
    found.cases.push_back({*kind, path});
  }
}

void add_directory(const fs::path& directory, int depth, Found& found) {
  const std::string name = fs::path(directory / "").parent_path().filename().string();
  if (fs::exists(directory / "config.json") && !fs::exists(directory / "expected.safetensors") &&
      name.starts_with("unsupported_")) {
    found.cases.push_back({"unsupported_target", directory.string()});
    return;
  }
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) found.errors.push_back(directory.string() + ": " + error.message());
  std::sort(entries.begin(), entries.end());
  for (const fs::path& entry : entries) {
    if (!fs::is_directory(entry)) {
      add_file(entry.string(), found);
    } else if (depth < kDepthMax) {
      add_directory(entry, depth + 1, found);
    }
  }
}

void add_argument(const std::string& path, Found& found) {
  if (fs::is_directory(path)) {
    add_directory(path, 0, found);
  } else if (fs::exists(path)) {
    add_file(path, found);
  } else {
    found.errors.push_back(path + " does not exist");
  }
}

bool run_case(const Case& item, DeviceId device_id) {
  const auto runner = runners().find(item.kind);
  if (runner == runners().end()) {
    fmt::print("FAIL {}: no runner for kind '{}'\n", item.path, item.kind);
    return false;
  }
  const Result<Report> report =
      guarded<Report>([&] { return runner->second(item.path, device_id); });
  if (!report.ok()) {
    fmt::print("FAIL {} ({}): {}\n", item.path, item.kind, report.status().message());
    return false;
  }
  fmt::print("{} {} ({})\n", report->passed() ? "PASS" : "FAIL", item.path, item.kind);
  for (const Difference& difference : report->differences) {
    const bool within = difference.largest <= difference.tolerance;
    fmt::print("  {} {}: {:.3g} of {:.3g}\n", within ? "ok " : "BAD", difference.tensor,
               difference.largest, difference.tolerance);
  }
  return report->passed();
}

int run(const std::vector<std::string>& arguments, DeviceId device_id) {
  Found found;
  for (const std::string& argument : arguments) add_argument(argument, found);
  int failed = 0;
  for (const std::string& error : found.errors) {
    fmt::print("FAIL {}\n", error);
    ++failed;
  }
  int passed = 0;
  for (const Case& item : found.cases) {
    if (run_case(item, device_id)) {
      ++passed;
    } else {
      ++failed;
    }
  }
  if (found.chat_masks > 0) {
    fmt::print("{} {} cases belong to python -m percheron_prepare.golden\n", found.chat_masks,
               kChatMask);
  }
  fmt::print("{} passed, {} failed, {} files skipped that are no golden case\n", passed, failed,
             found.skipped);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace percheron::golden

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  percheron::DeviceId device_id;
  if (arguments.size() > 1 && arguments[0] == "--device") {
    const auto named = percheron::parse_device_id(arguments[1]);
    if (!named.ok()) {
      fmt::print(stderr, "golden_test: {}\n", named.status().message());
      return 2;
    }
    device_id = *named;
    arguments.erase(arguments.begin(), arguments.begin() + 2);
  }
  if (arguments.empty()) {
    fmt::print(stderr, "usage: golden_test [--device NAME] FILE|DIRECTORY...\n");
    return 2;
  }
  return percheron::golden::run(arguments, device_id);
}

#include "actors/capture_directory.h"

#include <set>
#include <unordered_map>
#include <utility>

#include "actors/feature_capture.h"
#include "base/json.h"
#include "base/log.h"
#include "data/directory_lock.h"
#include "data/feature_file.h"

namespace percheron {
namespace {

constexpr const char* kSetFormat = "percheron.feature_set.v1";
constexpr const char* kLockFile = ".lock";
// kCaptureSetFile while write_text_atomically() writes it.
constexpr std::string_view kNewSetFile = "capture.json.new";

// What a kill leaves of a file that was being written.
bool is_unfinished(const std::string& name) {
  return name.ends_with(kUnfinishedSuffix) || name == kNewSetFile;
}

// What the first start of a capture makes before any features.
bool is_first(const std::string& name) { return name == kLockFile || name == kNewSetFile; }

bool is_ours(const std::string& name) {
  return is_first(name) || name == kCaptureSetFile || sample_of_file(name) >= 0 ||
         is_shard_name(name) || is_unfinished(name);
}

/// Checks a file against the samples that the plan has for it.
class Checker {
 public:
  Checker(const RunSetup& setup, const CapturePlan& plan, CapturedFiles& found)
      : setup_(setup),
        plan_(plan),
        fingerprint_(plan.origin.fingerprint.text()),
        // As for OfflineFeatures, which would leave the others out.
        beginnings_serve_(setup.target.rope.type != RopeType::kDynamic),
        found_(found) {}

  /// Whether document `d` of `file` holds the whole features of the selection's sample `i`.
  bool holds(const FeatureFile& file, int64_t d, size_t i) const {
    const std::string* text = file.fingerprint_text();
    const SampleSelection& chosen = setup_.data.selection;
    const auto rows = static_cast<size_t>(chosen.lengths[i]);
    return text != nullptr && *text == fingerprint_ && file.dtype() == plan_.shape.dtype &&
           file.slots() == plan_.shape.slots && file.hidden_size() == plan_.shape.hidden_size &&
           file.has_last() == plan_.shape.has_last &&
           file.top1(d).empty() != plan_.shape.has_top1 &&
           file.rows(d) >= static_cast<int64_t>(rows) &&
           (file.rows(d) == static_cast<int64_t>(rows) || beginnings_serve_) &&
           file.begins_with(d, setup_.data.train->tokens(chosen.samples[i]).first(rows));
  }

  void check_sample(const Result<FeatureFile>& file, size_t i) {
    if (file.ok() && file->documents() == 1 && holds(*file, 0, i)) {
      add(i);
    } else {
      ++found_.damaged;
    }
  }

  /// A shard is whole or captured again; samples that it leaves out were not finite.
  void check_shard(const Result<FeatureFile>& file, const CaptureUnit& unit) {
    std::unordered_map<int64_t, size_t> positions;
    for (size_t i = unit.begin; i < unit.end; ++i) {
      positions.insert({setup_.data.selection.samples[i], i});
    }
    bool whole = file.ok() && !file->sample_ids().empty();
    for (int64_t d = 0; whole && d < file->documents(); ++d) {
      const auto at = positions.find(file->sample_ids()[static_cast<size_t>(d)]);
      whole = at != positions.end() && holds(*file, d, at->second);
    }
    if (!whole) {
      found_.damaged += static_cast<int64_t>(unit.end - unit.begin);
      return;
    }
    for (size_t i = unit.begin; i < unit.end; ++i) found_.done[i] = true;
    found_.samples_whole += file->documents();
    found_.not_finite += static_cast<int64_t>(unit.end - unit.begin) - file->documents();
  }

 private:
  void add(size_t i) {
    found_.done[i] = true;
    ++found_.samples_whole;
  }

  const RunSetup& setup_;
  const CapturePlan& plan_;
  const std::string fingerprint_;
  const bool beginnings_serve_;
  CapturedFiles& found_;
};

}  // namespace

CaptureDirectory::CaptureDirectory(FileSystem& files, std::string path, Fingerprint settings)
    : files_(&files), path_(std::move(path)), settings_(std::move(settings)) {}

Result<CaptureDirectory> CaptureDirectory::open(FileSystem& files, const CaptureOptions& options,
                                                const Fingerprint& settings) {
  CaptureDirectory result(files, options.directory, settings);
  PERCHERON_RETURN_IF_ERROR(files.create_directories(options.directory));
  // Before the lock: a directory that is refused is left as it was.
  PERCHERON_RETURN_IF_ERROR(result.check().status());
  PERCHERON_ASSIGN_OR_RETURN(result.lock_, lock_directory(files, options.directory, "--out"));
  // And behind it: another capture may have begun and ended in between.
  PERCHERON_ASSIGN_OR_RETURN(const bool known, result.check());
  if (!known) PERCHERON_RETURN_IF_ERROR(result.finish(0, 0, 0));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(options.directory));
  for (const std::string& name : names) {
    if (!is_unfinished(name)) continue;
    PERCHERON_RETURN_IF_ERROR(files.remove_all(join_path(options.directory, name)));
  }
  return result;
}

Result<bool> CaptureDirectory::check() const {
  const std::string file = join_path(path_, kCaptureSetFile);
  const bool known = files_->exists(file);
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_->list(path_));
  for (const std::string& name : names) {
    if (known ? is_ours(name) : is_first(name)) continue;
    return failed_precondition("--out " + path_ + " holds " + name +
                               ", which is no part of a capture" +
                               (known ? "" : " that was begun there") + ": give a new directory");
  }
  if (!known) return false;
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files_->read_text(file));
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json set, parse_json(text, file));
  PERCHERON_ASSIGN_OR_RETURN(const auto format, json_get<std::string>(set, "format", file));
  if (format != kSetFormat)
    return failed_precondition(file + " has the format '" + format + "', expected '" + kSetFormat +
                               "': give a new directory");
  PERCHERON_ASSIGN_OR_RETURN(const auto lines, json_get<std::string>(set, "settings", file));
  PERCHERON_ASSIGN_OR_RETURN(const Fingerprint saved, Fingerprint::parse(lines, file));
  const Status same = compare_fingerprints(saved, "the capture in " + path_, settings_, "this one");
  if (same.ok()) return true;
  return failed_precondition(std::string(same.message()) +
                             ": give the same to go on, or a new directory");
}

Status CaptureDirectory::finish(int64_t samples, int64_t left_out, int64_t not_finite) {
  const nlohmann::ordered_json set = {{"format", kSetFormat},
                                      {"settings", settings_.text()},
                                      {"samples", samples},
                                      {"left_out", left_out},
                                      {"not_finite", not_finite}};
  PERCHERON_RETURN_IF_ERROR(write_text_atomically(
      *files_, join_path(path_, kCaptureSetFile),
      set.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
  return files_->sync_directory(path_);
}

Result<CapturedFiles> find_captured(FileSystem& files, const RunSetup& setup,
                                    const CaptureOptions& options, const CapturePlan& plan) {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> list, files.list(options.directory));
  const std::set<std::string> names(list.begin(), list.end());
  CapturedFiles found;
  found.done.assign(setup.data.selection.samples.size(), false);
  Checker checker(setup, plan, found);
  const auto there = [&](const std::string& name) { return names.count(name) != 0; };
  const auto path_of = [&](const std::string& name) { return join_path(options.directory, name); };
  const auto add_bytes = [&](const std::string& name, int64_t whole_before) {
    const Result<uint64_t> bytes = files.file_size(path_of(name));
    if (bytes.ok() && found.samples_whole > whole_before) found.bytes += *bytes;
  };
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const CaptureUnit& unit = plan.units[u];
    if (options.layout == CaptureLayout::kShards) {
      const std::string name = shard_file_name(static_cast<int64_t>(u));
      if (!there(name)) continue;
      const int64_t before = found.samples_whole;
      checker.check_shard(FeatureFile::open(files, path_of(name)), unit);
      add_bytes(name, before);
      continue;
    }
    for (size_t i = unit.begin; i < unit.end; ++i) {
      const std::string name = sample_file_name(setup.data.selection.samples[i]);
      if (!there(name)) continue;
      const int64_t before = found.samples_whole;
      checker.check_sample(FeatureFile::open(files, path_of(name)), i);
      add_bytes(name, before);
    }
  }
  return found;
}

void remove_unused_capture(FileSystem& files, const std::string& directory) {
  const Result<std::vector<std::string>> names = files.list(directory);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!is_first(name) && name != kCaptureSetFile) return;
  }
  const Status removed = files.remove_all(directory);
  if (!removed.ok()) log_warning("{} stays: {}", directory, removed.message());
}

}  // namespace percheron

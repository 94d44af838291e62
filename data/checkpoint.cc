#include "data/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/log.h"
#include "data/checkpoint_manifest.h"

namespace percheron {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kStepDigits = 8;
constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr std::string_view kReplacedMark = ".old-";
constexpr const char* kLatest = "latest";
constexpr const char* kBest = "best";
constexpr int kTemporaryNamesMax = 1000;

// The step in "step-00001200"; none for other names.
std::optional<int64_t> step_of_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = -1;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), step);
  if (error != std::errc() || end != digits.end() || step < 0 || digits.size() < kStepDigits)
    return std::nullopt;
  return step;
}

// ".step-00001200.tmp-0", the first such name that is free.
Result<std::string> free_name(FileSystem& files, const std::string& output, int64_t step,
                              std::string_view mark) {
  for (int n = 0; n < kTemporaryNamesMax; ++n) {
    std::string path =
        join_path(output, "." + step_directory_name(step) + std::string(mark) + std::to_string(n));
    if (!files.exists(path)) return path;
  }
  return failed_precondition("too many leftovers of killed writes in " + output +
                             "; remove the hidden directories there");
}

Status check_name(const std::string& name, std::set<std::string>& names) {
  const bool bad = name.empty() || name.front() == '/' || name.back() == '/' || name == kManifest ||
                   name.find("..") != std::string::npos || name.find("//") != std::string::npos;
  if (bad || !names.insert(name).second)
    return invalid_argument("a checkpoint can't hold a file named '" + name + "'" +
                            (bad ? "" : " twice"));
  return ok_status();
}

std::string folder_of(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash == std::string::npos ? "" : name.substr(0, slash);
}

// Creates a directory and its parents so that they outlast a crash.
Status create_durably(FileSystem& files, const std::string& directory) {
  if (files.exists(directory)) return ok_status();
  std::vector<std::string> parents;  // of the directories that are missing
  for (std::string path = directory; !path.empty() && !files.exists(path);) {
    const std::string parent = folder_of(path);
    parents.push_back(!parent.empty() ? parent : path.front() == '/' ? "/" : ".");
    path = parent;
  }
  PERCHERON_RETURN_IF_ERROR(files.create_directories(directory));
  for (const std::string& parent : parents) PERCHERON_RETURN_IF_ERROR(files.sync_directory(parent));
  return ok_status();
}

Status write_text(FileSystem& files, const std::string& path, const std::string& text) {
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.create(path));
  PERCHERON_RETURN_IF_ERROR(file->append(std::as_bytes(std::span(text))));
  PERCHERON_RETURN_IF_ERROR(file->sync());
  return file->close();
}

// Fills the temporary directory: every file, every folder's entries, then the manifest.
Status write_contents(FileSystem& files, const std::string& directory, int64_t step,
                      std::span<const CheckpointFile> contents, const Fingerprint& fingerprint) {
  PERCHERON_RETURN_IF_ERROR(files.create_directories(directory));
  CheckpointManifest manifest;
  manifest.step = step;
  manifest.fingerprint = fingerprint;
  std::set<std::string> names, folders;
  for (const CheckpointFile& file : contents) {
    PERCHERON_RETURN_IF_ERROR(check_name(file.name, names));
    const std::string path = join_path(directory, file.name);
    if (const std::string folder = folder_of(file.name);
        !folder.empty() && folders.insert(folder).second)
      PERCHERON_RETURN_IF_ERROR(files.create_directories(join_path(directory, folder)));
    if (const auto* text = std::get_if<std::string>(&file.contents)) {
      PERCHERON_RETURN_IF_ERROR(write_text(files, path, *text));
    } else {
      const TensorFile& tensors = std::get<TensorFile>(file.contents);
      PERCHERON_RETURN_IF_ERROR(write_safetensors(files, path, tensors.tensors, tensors.metadata));
    }
    // Read back, so that the checksum is of what the disk was given.
    PERCHERON_ASSIGN_OR_RETURN(ManifestEntry entry, manifest_entry(files, directory, file.name));
    manifest.files.push_back(std::move(entry));
  }
  for (const std::string& folder : folders) {
    for (std::string part = folder; !part.empty(); part = folder_of(part))
      PERCHERON_RETURN_IF_ERROR(files.sync_directory(join_path(directory, part)));
  }
  // The manifest goes last: who sees it may trust every file that it names.
  PERCHERON_RETURN_IF_ERROR(
      write_text(files, join_path(directory, kManifest), manifest_text(manifest)));
  return files.sync_directory(directory);
}

// Gives the complete directory its name; an older one of the same step steps aside first.
Status publish(FileSystem& files, const std::string& output, int64_t step,
               const std::string& temporary) {
  const std::string final_path = join_path(output, step_directory_name(step));
  std::string replaced;
  if (files.exists(final_path)) {
    PERCHERON_ASSIGN_OR_RETURN(replaced, free_name(files, output, step, kReplacedMark));
    PERCHERON_RETURN_IF_ERROR(files.rename(final_path, replaced));
  }
  const Status renamed = files.rename(temporary, final_path);
  if (!renamed.ok()) {
    if (!replaced.empty()) {
      // If this fails too, clean_checkpoints() does it at the next start.
      [[maybe_unused]] const Status ignored = files.rename(replaced, final_path);
    }
    return renamed;
  }
  PERCHERON_RETURN_IF_ERROR(files.sync_directory(output));
  if (!replaced.empty()) PERCHERON_RETURN_IF_ERROR(files.remove_all(replaced));
  return ok_status();
}

Status point(FileSystem& files, const std::string& output, int64_t step, const char* link) {
  PERCHERON_RETURN_IF_ERROR(
      files.replace_symlink(step_directory_name(step), join_path(output, link)));
  return files.sync_directory(output);
}

// Steps that have a directory, in ascending order. A missing output directory has none.
Result<std::vector<int64_t>> listed_steps(FileSystem& files, const std::string& output) {
  std::vector<int64_t> steps;
  if (!files.exists(output)) return steps;
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(output));
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = step_of_name(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

// Whether a checkpoint is useless, rather than out of reach for now.
bool is_damage(const Status& status) {
  return status.code() == StatusCode::kNotFound || status.code() == StatusCode::kDataLoss;
}

// The step that a link points at; none when there is no such link.
std::optional<int64_t> linked_step(FileSystem& files, const std::string& output, const char* link) {
  const Result<std::string> target = files.read_symlink(join_path(output, link));
  return target.ok() ? step_of_name(*target) : std::nullopt;
}

}  // namespace

std::string step_directory_name(int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kStepDigits) digits.insert(0, kStepDigits - digits.size(), '0');
  return std::string(kStepPrefix) + digits;
}

Result<std::string> write_checkpoint(FileSystem& files, const std::string& output_directory,
                                     int64_t step, std::span<const CheckpointFile> contents,
                                     const Fingerprint& fingerprint,
                                     const std::function<Status()>& may_publish) {
  if (step < 0) return invalid_argument("a checkpoint of step " + std::to_string(step));
  PERCHERON_RETURN_IF_ERROR(create_durably(files, output_directory));
  PERCHERON_ASSIGN_OR_RETURN(const std::string temporary,
                             free_name(files, output_directory, step, kTemporaryMark));
  Status status = write_contents(files, temporary, step, contents, fingerprint);
  if (status.ok() && may_publish) status = may_publish();
  if (status.ok()) status = publish(files, output_directory, step, temporary);
  if (!status.ok()) {
    // The write's own error is the one to report; what stays is cleaned at the next start.
    [[maybe_unused]] const Status ignored = files.remove_all(temporary);
    return status.with_context("the checkpoint of step " + std::to_string(step) +
                               " was not written");
  }
  PERCHERON_RETURN_IF_ERROR(point(files, output_directory, step, kLatest));
  return join_path(output_directory, step_directory_name(step));
}

Status mark_best(FileSystem& files, const std::string& output_directory, int64_t step) {
  const std::string path = join_path(output_directory, step_directory_name(step));
  if (!files.exists(join_path(path, kManifest)))
    return not_found("best can't point at " + path + ": there is no complete checkpoint");
  return point(files, output_directory, step, kBest);
}

Result<bool> restore_best(FileSystem& files, const std::string& output_directory, int64_t step) {
  const Status sound =
      verify_checkpoint(files, join_path(output_directory, step_directory_name(step))).status();
  if (!sound.ok() && !is_damage(sound)) return sound;
  const bool linked = linked_step(files, output_directory, kBest) == step;
  if (sound.ok()) {
    if (!linked) PERCHERON_RETURN_IF_ERROR(point(files, output_directory, step, kBest));
    return true;
  }
  if (linked) {
    PERCHERON_RETURN_IF_ERROR(files.remove_all(join_path(output_directory, kBest)));
    PERCHERON_RETURN_IF_ERROR(files.sync_directory(output_directory));
  }
  return false;
}

Result<std::vector<std::string>> remove_old_checkpoints(FileSystem& files,
                                                        const std::string& output_directory,
                                                        int64_t keep) {
  if (keep < 1)
    return invalid_argument("checkpoint.keep is " + std::to_string(keep) + ", expected at least 1");
  PERCHERON_ASSIGN_OR_RETURN(std::vector<int64_t> steps, listed_steps(files, output_directory));
  const auto latest = linked_step(files, output_directory, kLatest);
  const auto best = linked_step(files, output_directory, kBest);
  std::erase_if(steps, [&](int64_t step) { return step == latest || step == best; });
  std::vector<std::string> removed;
  for (size_t i = 0; i + static_cast<size_t>(keep) < steps.size(); ++i) {
    const std::string name = step_directory_name(steps[i]);
    // First out of sight, so that nobody finds half a directory.
    PERCHERON_ASSIGN_OR_RETURN(const std::string hidden,
                               free_name(files, output_directory, steps[i], kTemporaryMark));
    PERCHERON_RETURN_IF_ERROR(files.rename(join_path(output_directory, name), hidden));
    PERCHERON_RETURN_IF_ERROR(files.sync_directory(output_directory));
    PERCHERON_RETURN_IF_ERROR(files.remove_all(hidden));
    removed.push_back(name);
  }
  return removed;
}

Result<int64_t> clean_checkpoints(FileSystem& files, const std::string& output_directory) {
  if (!files.exists(output_directory)) return int64_t{0};
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(output_directory));
  int64_t leftovers = 0;
  for (const std::string& name : names) {
    const size_t temporary = name.find(kTemporaryMark), replaced = name.find(kReplacedMark);
    const size_t mark = std::min(temporary, replaced);
    if (!name.starts_with('.') || mark == std::string::npos ||
        !step_of_name(std::string_view(name).substr(1, mark - 1)))
      continue;
    ++leftovers;
    const std::string path = join_path(output_directory, name);
    const std::string original = join_path(output_directory, name.substr(1, mark - 1));
    if (replaced != std::string::npos && !files.exists(original)) {
      log_warning("putting {} back, whose replacement was interrupted", original);
      PERCHERON_RETURN_IF_ERROR(files.rename(path, original));
    } else {
      log_warning("removing {}, which an interrupted write left behind", path);
      PERCHERON_RETURN_IF_ERROR(files.remove_all(path));
    }
  }
  if (leftovers > 0) PERCHERON_RETURN_IF_ERROR(files.sync_directory(output_directory));
  return leftovers;
}

Result<bool> holds_checkpoints(FileSystem& files, const std::string& output_directory) {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                             listed_steps(files, output_directory));
  return !steps.empty();
}

Result<LatestCheckpoint> find_latest(FileSystem& files, const std::string& output_directory) {
  LatestCheckpoint latest;
  PERCHERON_ASSIGN_OR_RETURN(std::vector<int64_t> steps, listed_steps(files, output_directory));
  std::reverse(steps.begin(), steps.end());
  const std::optional<int64_t> linked = linked_step(files, output_directory, kLatest);
  if (linked) {
    std::erase(steps, *linked);
    steps.insert(steps.begin(), *linked);
  } else if (!steps.empty()) {
    latest.problems.push_back(join_path(output_directory, kLatest) + " is missing");
  }
  for (const int64_t step : steps) {
    Result<CheckpointInfo> info =
        verify_checkpoint(files, join_path(output_directory, step_directory_name(step)));
    if (info.ok() && info->step != step)
      info = data_loss(info->path + " holds step " + std::to_string(info->step));
    if (info.ok()) {
      latest.checkpoint = std::move(info).value();
      break;
    }
    if (!is_damage(info.status())) return info.status();
    latest.problems.push_back(info.status().message());
  }
  return latest;
}

Result<CheckpointInfo> verify_checkpoint(FileSystem& files, const std::string& path) {
  const std::string manifest_path = join_path(path, kManifest);
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(manifest_path));
  PERCHERON_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                             parse_manifest(text, manifest_path));
  for (const ManifestEntry& entry : manifest.files) {
    PERCHERON_ASSIGN_OR_RETURN(const ManifestEntry found, manifest_entry(files, path, entry.name));
    if (found.bytes != entry.bytes)
      return data_loss(join_path(path, entry.name) + " has " + std::to_string(found.bytes) +
                       " bytes, its manifest says " + std::to_string(entry.bytes));
    if (found.crc32c != entry.crc32c)
      return data_loss(join_path(path, entry.name) + " contradicts the checksum in its manifest");
  }
  return CheckpointInfo{manifest.step, path, manifest.fingerprint};
}

Result<uint64_t> checkpoint_bytes(FileSystem& files, const std::string& path) {
  const std::string manifest_path = join_path(path, kManifest);
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(manifest_path));
  PERCHERON_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                             parse_manifest(text, manifest_path));
  uint64_t bytes = 0;
  for (const ManifestEntry& entry : manifest.files) bytes += entry.bytes;
  return bytes;
}

}  // namespace percheron

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "data/fingerprint.h"
#include "data/safetensors.h"

namespace percheron {

/// Tensors to be written as one safetensors file; the views' memory is the caller's.
struct TensorFile {
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// A file of a checkpoint: its name relative to the checkpoint's directory, such as
/// "training_state/optimizer.safetensors", and what it holds.
struct CheckpointFile {
  std::string name;
  std::variant<std::string, TensorFile> contents;
};

/// A complete checkpoint directory.
struct CheckpointInfo {
  int64_t step = 0;
  std::string path;
  Fingerprint fingerprint;
};

/// What find_latest() found, and why not what `latest` points at.
struct LatestCheckpoint {
  std::optional<CheckpointInfo> checkpoint;
  std::vector<std::string> problems;  // one line for each checkpoint that had to be passed over
};

/// "step-00001200".
std::string step_directory_name(int64_t step);

/// Writes `contents` to output_directory/step-SSSSSSSS and points `latest` at it: into a temporary
/// directory, each file synced, the manifest (names, sizes, CRC-32C) last, then one rename; an
/// older directory of the same step is replaced. Returns the path. Nothing is visible before it is
/// complete (invariant 4). On any error, disk full (kResourceExhausted) included, earlier
/// checkpoints stay valid and the temporary directory is removed. kInvalidArgument for a bad or
/// repeated file name. One writer per output directory: `may_publish`, if given, is asked when all
/// but the rename is done, and its error is the result. Blocks on disk: not for scheduler threads
/// (invariant 6).
Result<std::string> write_checkpoint(FileSystem& files, const std::string& output_directory,
                                     int64_t step, std::span<const CheckpointFile> contents,
                                     const Fingerprint& fingerprint,
                                     const std::function<Status()>& may_publish = {});

/// Points `best` at the checkpoint of `step`. kNotFound when there is none.
Status mark_best(FileSystem& files, const std::string& output_directory, int64_t step);

/// Makes `best` point at the checkpoint of `step`, as a resumed run remembers it: a crash may have
/// come between the checkpoint and the link. False, with the link removed if it pointed there, when
/// that checkpoint is gone or damaged.
Result<bool> restore_best(FileSystem& files, const std::string& output_directory, int64_t step);

/// Removes the oldest checkpoints until `keep` (at least 1) are left, not counting those that
/// `latest` and `best` point at, which stay. Returns the names that were removed.
Result<std::vector<std::string>> remove_old_checkpoints(FileSystem& files,
                                                        const std::string& output_directory,
                                                        int64_t keep);

/// Removes what killed writes left behind and puts a directory back that was being replaced. Call
/// at start, before find_latest(). Returns the number of leftovers, each logged; 0 when there is no
/// output directory yet.
Result<int64_t> clean_checkpoints(FileSystem& files, const std::string& output_directory);

/// Whether there is any step directory, complete or damaged.
Result<bool> holds_checkpoints(FileSystem& files, const std::string& output_directory);

/// The checkpoint to resume from: what `latest` points at if every file is complete, else the
/// newest complete one. None in a new output directory, or with problems when all are damaged. A
/// file that can't be read (no rights, no descriptors) is no damage: that error is returned. Reads
/// every byte.
Result<LatestCheckpoint> find_latest(FileSystem& files, const std::string& output_directory);

/// Checks one checkpoint directory's manifest and every file that it names. kNotFound without a
/// manifest; kDataLoss names the file that is missing, of another size or corrupt.
Result<CheckpointInfo> verify_checkpoint(FileSystem& files, const std::string& path);

/// Bytes of all files that the manifest of the checkpoint at `path` names.
Result<uint64_t> checkpoint_bytes(FileSystem& files, const std::string& path);

}  // namespace percheron

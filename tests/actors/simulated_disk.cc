#include "tests/actors/simulated_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "base/hash.h"
#include "data/checkpoint.h"

namespace percheron {
namespace {

constexpr const char* kDirectory = "runs/simulated";
constexpr const char* kFile = "training_state/state.txt";

// The progress, then the parameters.
std::string encode(const Parameters& parameters, const RunProgress& progress) {
  return fmt::format("{} {} {} {} {}\n", progress.step, progress.micro_batches, progress.tokens,
                     progress.samples, progress.ledger_crc32c) +
         text_of(parameters);
}

SimulatedDisk::Saved decode(const std::string& path, const std::string& text) {
  SimulatedDisk::Saved saved;
  saved.path = path;
  std::istringstream in(text);
  RunProgress& progress = saved.progress;
  in >> progress.step >> progress.micro_batches >> progress.tokens >> progress.samples >>
      progress.ledger_crc32c;
  std::string rest;
  std::getline(in, rest);
  saved.parameters = parse_parameters(std::string(std::istreambuf_iterator<char>(in), {}));
  return saved;
}

}  // namespace

uint32_t checksum_of(const Parameters& parameters) {
  const std::string text = text_of(parameters);
  return crc32c(std::as_bytes(std::span(text.data(), text.size())), 0);
}

std::string text_of(const Parameters& parameters) {
  std::string text;
  for (const Sums& step : parameters) {
    for (const auto& [id, times] : step) {
      text += fmt::format("{} {} {} ", id.epoch, id.index, times);
    }
    text += "\n";
  }
  return text;
}

Parameters parse_parameters(const std::string& text) {
  Parameters parameters;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    Sums sums;
    MicroBatchId id;
    int times = 0;
    while (in >> id.epoch >> id.index >> times) sums[id] = times;
    parameters.push_back(std::move(sums));
  }
  return parameters;
}

Result<std::string> SimulatedDisk::write(const Parameters& parameters,
                                         const RunProgress& progress) {
  const std::string text = encode(parameters, progress);
  if (canary_ == Canary::kCheckpointIsWrittenInPlace) return write_in_place(text, progress.step);
  const CheckpointFile contents[] = {{kFile, text}};
  PERCHERON_ASSIGN_OR_RETURN(std::string path,
                             write_checkpoint(files_, kDirectory, progress.step, contents, {}));
  PERCHERON_ASSIGN_OR_RETURN(const auto removed, remove_old_checkpoints(files_, kDirectory, 2));
  return path;
}

// As a trainer would that knows nothing of crashes: no temporary name, nothing synced.
Result<std::string> SimulatedDisk::write_in_place(const std::string& text, int64_t step) {
  const std::string path = join_path(kDirectory, step_directory_name(step));
  PERCHERON_RETURN_IF_ERROR(files_.create_directories(join_path(path, "training_state")));
  PERCHERON_ASSIGN_OR_RETURN(const auto file, files_.create(join_path(path, kFile)));
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  for (size_t at = 0; at < bytes.size(); at += 64) {
    PERCHERON_RETURN_IF_ERROR(
        file->append(bytes.subspan(at, std::min<size_t>(64, bytes.size() - at))));
  }
  return path;
}

Result<SimulatedDisk::Saved> SimulatedDisk::read(const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, files_.read_text(join_path(path, kFile)));
  return decode(path, text);
}

void SimulatedDisk::be_full() { files_.fill_disk_after(random_.below(200)); }

void SimulatedDisk::fail_once() {
  files_.fail_operation(1 + random_.below(kWriteOperations), internal_error("input/output error"));
}

void SimulatedDisk::recover() {
  files_.free_disk();
  files_.fail_operation(1, internal_error("spent"));  // in place of one that was not met
  (void)files_.list("/");
}

void SimulatedDisk::lose_power_while_writing() {
  files_.cut_power_at_operation(1 + random_.below(kWriteOperations));
}

void SimulatedDisk::crash() {
  files_.restart_keeping_some(random_.next());
  files_.free_disk();
}

std::optional<SimulatedDisk::Saved> SimulatedDisk::newest() {
  std::string path;
  if (canary_ == Canary::kCheckpointIsWrittenInPlace) {
    const auto names = files_.list(kDirectory);
    if (!names.ok() || names->empty()) return std::nullopt;
    path = join_path(kDirectory, *std::ranges::max_element(*names));
  } else {
    const auto cleaned = clean_checkpoints(files_, kDirectory);
    const auto latest = find_latest(files_, kDirectory);
    if (!cleaned.ok() || !latest.ok() || !latest->checkpoint) return std::nullopt;
    path = latest->checkpoint->path;
  }
  Result<Saved> saved = read(path);
  if (!saved.ok()) return std::nullopt;
  return *std::move(saved);
}

}  // namespace percheron

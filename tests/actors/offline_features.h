#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/feature_capture.h"
#include "data/feature_file.h"
#include "data/safetensors.h"
#include "tests/actors/tiny_run.h"
#include "tests/model/toy_model.h"

namespace percheron {

/// Keeps everything that it is told.
class RecordingCapture final : public CaptureObserver {
 public:
  void on_progress(const CaptureProgress& progress) override { progress_.push_back(progress); }
  void on_event(const std::string& text) override { events_.push_back(text); }
  const std::vector<CaptureProgress>& progress() const { return progress_; }
  bool heard(const std::string& part) const {
    for (const std::string& event : events_) {
      if (event.find(part) != std::string::npos) return true;
    }
    return false;
  }

 private:
  std::vector<CaptureProgress> progress_;
  std::vector<std::string> events_;
};

/// capture_to_files() as the command does it, with the operating system's files and clock.
inline Result<CaptureSummary> capture_tiny(const proto::Run& run, const CaptureOptions& options,
                                           CaptureObserver& observer) {
  PERCHERON_ASSIGN_OR_RETURN(const auto setup, resolve_run(run, system_files()));
  PERCHERON_ASSIGN_OR_RETURN(CapturePlan plan, plan_capture(*setup, options));
  return capture_to_files(setup, options, std::move(plan), system_files(), system_clock(),
                          observer);
}

/// A fresh directory of the test's that is not there yet.
inline std::string no_directory(const std::string& name) {
  const std::string path = testing::TempDir() + name;
  EXPECT_TRUE(system_files().remove_all(path).ok());
  return path;
}

/// The files of a directory, but its lock, by name.
inline std::map<std::string, std::string> contents_of(const std::string& directory) {
  std::map<std::string, std::string> contents;
  const std::vector<std::string> names = system_files().list(directory).value();
  for (const std::string& name : names) {
    if (name != ".lock") contents[name] = read_file(join_path(directory, name));
  }
  return contents;
}

/// A fresh directory of everything that `run` trains on, captured.
inline std::string captured(const proto::Run& run, const std::string& name,
                            CaptureLayout layout = CaptureLayout::kSamples) {
  CaptureOptions options;
  options.directory = no_directory(name);
  options.layout = layout;
  options.shard_bytes = 40'000;
  RecordingCapture observer;
  const auto summary = capture_tiny(run, options, observer);
  EXPECT_TRUE(summary.ok()) << summary.status().message();
  return options.directory;
}

/// The states of a file's rows, [T, slots, H], for a peer to change.
struct PeerStates {
  std::vector<float> values;
  int64_t rows = 0, slots = 0, hidden = 0;

  float* at(int64_t row, int64_t slot) { return values.data() + (row * slots + slot) * hidden; }
};
using PeerChange = std::function<void(PeerStates&)>;

/// Puts the last slot behind a norm of this weight.
inline PeerChange after_norm(const std::vector<float>& norm) {
  return [norm](PeerStates& states) {
    for (int64_t row = 0; row < states.rows; ++row) {
      float* last = states.at(row, states.slots - 1);
      double squares = 0;
      for (int64_t c = 0; c < states.hidden; ++c) squares += last[c] * last[c];
      const auto scale =
          static_cast<float>(1 / std::sqrt(squares / static_cast<double>(states.hidden) + 1e-6));
      for (int64_t c = 0; c < states.hidden; ++c) last[c] *= scale * norm[static_cast<size_t>(c)];
    }
  };
}

/// The captured files of samples as another engine would have written them: no metadata, no top-1
/// ids, of this type, their states changed.
inline std::string peers_files(const std::string& from, const std::string& name, DType dtype,
                               const PeerChange& change = {}) {
  const std::string directory = no_directory(name);
  EXPECT_TRUE(system_files().create_directories(directory).ok());
  const std::vector<std::string> names = system_files().list(from).value();
  for (const std::string& file : names) {
    if (sample_of_file(file) < 0) continue;
    const auto own = SafetensorsFile::open(system_files(), join_path(from, file)).value();
    const ConstTensorView view = own.tensor("hidden_states").value();
    PeerStates states{{view.as<float>(), view.as<float>() + view.elements()},
                      view.dim(0),
                      view.dim(1),
                      view.dim(2)};
    if (change) change(states);
    std::vector<uint16_t> bits;
    for (const float value : states.values) bits.push_back(bf16_from_float(value));
    const void* data = dtype == DType::kBf16 ? static_cast<const void*>(bits.data())
                                             : static_cast<const void*>(states.values.data());
    const NamedTensor tensors[] = {
        {"hidden_states", ConstTensorView(data, dtype, {states.rows, states.slots, states.hidden})},
        {"token_ids", own.tensor("token_ids").value()}};
    EXPECT_TRUE(write_safetensors(system_files(), join_path(directory, file), tensors, {}).ok());
  }
  return directory;
}

}  // namespace percheron

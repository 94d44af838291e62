#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/run_checkpoint.h"
#include "base/random.h"
#include "tests/actors/simulated_run.h"
#include "tests/actors/simulated_trainer.h"
#include "tests/base/fault_file_system.h"

namespace percheron {

/// The checkpoints of a simulated run: written, cleaned and found by the code that real ones are,
/// on a file system that is full, fails, and loses what was not synced.
class SimulatedDisk {
 public:
  struct Saved {
    std::string path;
    Parameters parameters;
    RunProgress progress;
  };

  SimulatedDisk(uint64_t seed, Canary canary)
      : random_(Random::keyed(seed, "disk", 0)), canary_(canary) {}

  Result<std::string> write(const Parameters& parameters, const RunProgress& progress);
  Result<Saved> read(const std::string& path);

  /// The next write finds no room for all of it, or meets an error somewhere.
  void be_full();
  void fail_once();
  /// Ends what was ordered above, as if somebody had made room.
  void recover();
  /// The power goes somewhere in the next write, which fails.
  void lose_power_while_writing();
  /// Everything ends; of what was not synced some is left.
  void crash();
  /// What a run that starts goes on from; none if there is nothing.
  std::optional<Saved> newest();

 private:
  static constexpr uint64_t kWriteOperations = 25;  // about as many as a checkpoint takes
  Result<std::string> write_in_place(const std::string& text, int64_t step);

  FaultFileSystem files_;
  Random random_;
  Canary canary_;
};

}  // namespace percheron

#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/file_system.h"
#include "kernels/device.h"
#include "model/drafter.h"
#include "model/target.h"

namespace percheron {

/// Where and in which numbers a command computes.
struct EngineOptions {
  std::string device = "cpu:0";
  int threads = 0;  // 0 = all cores
  bool graphs = true;  // of a CUDA device
  std::string dtype = "bf16";
  std::string drafter_dtype;                   // empty = as `dtype`
  WeightFormat weights = WeightFormat::kFull;  // of the target
};

void add_engine_options(CLI::App& command, EngineOptions& options);

/// A device with a target, and a drafter if wanted, for commands that run in the foreground.
class Engine {
 public:
  /// Opens the device and binds the calling thread to it.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);

  /// Loads the target with the states that `drafter_directory` reads, and that drafter; an empty
  /// directory: no drafter.
  Status load(FileSystem& files, const std::string& target_directory,
              const std::string& drafter_directory);

  Context& context() { return context_; }
  Target& target() { return *target_; }
  Drafter* drafter() { return drafter_.get(); }
  DType dtype() const { return dtype_; }
  DType drafter_dtype() const { return drafter_dtype_; }

 private:
  Engine(std::unique_ptr<Device> device, DType dtype, DType drafter_dtype, WeightFormat weights);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  Context context_;
  DType dtype_, drafter_dtype_;
  WeightFormat weights_;
  std::unique_ptr<Target> target_;
  std::unique_ptr<Drafter> drafter_;
};

}  // namespace percheron

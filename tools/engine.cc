#include "tools/engine.h"

#include "model/drafter_files.h"
#include "tools/number_options.h"

namespace percheron {
namespace {

TargetParts parts_of(const Target& target) {
  return {target.embedding(), target.head(), target.final_norm(), target.config().rms_norm_eps};
}

DType dtype_of(const std::string& name) { return name == "bf16" ? DType::kBf16 : DType::kF32; }

}  // namespace

void add_engine_options(CLI::App& command, EngineOptions& options) {
  command.add_option("--device", options.device, "Device to compute on, such as cpu:0")
      ->capture_default_str();
  command.add_option("--threads", options.threads, "Cores of a CPU device; 0 = all")
      ->check(in_range(0, 1024))
      ->capture_default_str();
  command.add_option("--dtype", options.dtype, "Numbers of products: bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
}

Engine::Engine(std::unique_ptr<Device> device, DType dtype, DType drafter_dtype,
               WeightFormat weights)
    : device_(std::move(device)),
      stream_(device_->make_stream()),
      arena_(*device_),
      context_{*device_, *stream_, arena_},
      dtype_(dtype),
      drafter_dtype_(drafter_dtype),
      weights_(weights) {}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  PERCHERON_ASSIGN_OR_RETURN(const DeviceId id, parse_device_id(options.device));
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                             open_device(id, {.threads = options.threads,
                                              .graphs = options.graphs,
                                              .planned = DeviceKind::kCuda}));
  device->bind_thread();
  const DType dtype = dtype_of(options.dtype);
  const DType drafter = options.drafter_dtype.empty() ? dtype : dtype_of(options.drafter_dtype);
  return std::unique_ptr<Engine>(new Engine(std::move(device), dtype, drafter, options.weights));
}

Status Engine::load(FileSystem& files, const std::string& target_directory,
                    const std::string& drafter_directory) {
  TargetOptions options;
  options.compute_dtype = dtype_;
  options.weights = weights_;
  // Decoding reads every weight for each token: it is only worth expanding them each time where the
  // memory is a card's.
  if (!device_->info().own_memory) options.expansion = WeightExpansion::kOnce;
  if (drafter_directory.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(target_, Target::load(files, target_directory, context_, options));
    return ok_status();
  }
  PERCHERON_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(files, target_directory));
  PERCHERON_ASSIGN_OR_RETURN(const DrafterFile file,
                             read_drafter(files, drafter_directory, &config));
  options.capture = file.config.capture;
  PERCHERON_ASSIGN_OR_RETURN(target_, Target::load(files, target_directory, context_, options));
  PERCHERON_RETURN_IF_ERROR(check_embedding(file, target_->embedding()));
  PERCHERON_ASSIGN_OR_RETURN(
      drafter_, make_drafter_from_file(context_, file, parts_of(*target_), drafter_dtype_));
  return ok_status();
}

}  // namespace percheron

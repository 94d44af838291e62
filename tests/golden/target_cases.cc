#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "base/json.h"
#include "model/rope.h"
#include "model/target.h"
#include "tests/golden/golden_device.h"
#include "tests/golden/runner.h"
#include "tests/golden/tensors.h"

namespace percheron::golden {
namespace {

// The rows of the case as the target takes them: a new document where document_ids changes.
Result<PackedSequences> read_rows(const SafetensorsFile& expected) {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, read_integers(expected, "input_ids"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> documents,
                             read_integers(expected, "document_ids"));
  if (ids.empty() || ids.size() != documents.size()) {
    return invalid_argument(expected.path() + ": input_ids and document_ids differ in length");
  }
  PackedSequences rows;
  rows.offsets.push_back(0);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0 && documents[i] != documents[i - 1]) rows.offsets.push_back(static_cast<int32_t>(i));
    rows.token_ids.push_back(static_cast<int32_t>(ids[i]));
  }
  rows.offsets.push_back(static_cast<int32_t>(ids.size()));
  return rows;
}

// The rotary embedding against the stored one; `dynamic` has none.
Status compare_rope(const SafetensorsFile& expected, const ModelConfig& config, Report& report) {
  if (!expected.contains("inv_freq")) return ok_status();
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> stored, read_floats(expected, "inv_freq"));
  const std::vector<double> ours =
      rope_inverse_frequencies(config.rope, config.head_dim, config.max_position_embeddings, 0);
  report.differences.push_back(
      {"inv_freq", largest_difference({ours.begin(), ours.end()}, stored), 1e-6});
  if (expected.metadata().count("attention_scaling") != 0) {
    PERCHERON_ASSIGN_OR_RETURN(const double scaling,
                               metadata_number(expected, "attention_scaling"));
    report.differences.push_back(
        {"attention_scaling", std::abs(scaling - rope_attention_scaling(config.rope)), 1e-6});
  }
  return ok_status();
}

Status compare(const SafetensorsFile& expected, const std::string& name, double tolerance,
               const std::vector<float>& actual, Report& report) {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> stored, read_floats(expected, name));
  report.differences.push_back({name, largest_difference(actual, stored), tolerance});
  return ok_status();
}

std::vector<float> slot_of(const std::vector<float>& captured, int64_t slots, int64_t slot,
                           int64_t hidden) {
  std::vector<float> state;
  const int64_t rows = static_cast<int64_t>(captured.size()) / (slots * hidden);
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = captured.begin() + (row * slots + slot) * hidden;
    state.insert(state.end(), first, first + hidden);
  }
  return state;
}

}  // namespace

Result<Report> run_target_forward(const std::string& path, DeviceId device_id) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  PERCHERON_ASSIGN_OR_RETURN(const SafetensorsFile expected,
                             SafetensorsFile::open(system_files(), path));
  PERCHERON_ASSIGN_OR_RETURN(const double tolerance, metadata_number(expected, "tolerance_abs"));
  PERCHERON_ASSIGN_OR_RETURN(const PackedSequences rows, read_rows(expected));
  PERCHERON_ASSIGN_OR_RETURN(const ModelConfig config,
                             read_model_config(system_files(), directory));
  PERCHERON_ASSIGN_OR_RETURN(GoldenDevice device, GoldenDevice::open(device_id));
  Context context = device.context();
  TargetOptions options;
  options.compute_dtype = DType::kF32;
  for (int64_t k = 0; k <= config.num_hidden_layers; ++k) options.capture.push_back(k);
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Target> target,
                             Target::load(system_files(), directory, context, options));

  const int64_t count = static_cast<int64_t>(rows.token_ids.size());
  const int64_t slots = config.num_hidden_layers + 1, hidden = config.hidden_size;
  const TensorView captured = context.arena.take(DType::kF32, {count, slots, hidden});
  const TensorView last = context.arena.take(DType::kF32, {count, hidden});
  const TensorView logits = context.arena.take(DType::kF32, {count, config.vocab_size});
  const TensorView normed = context.arena.take(DType::kF32, {count, hidden});
  PERCHERON_RETURN_IF_ERROR(target->forward(context, rows, nullptr, captured, last));
  target->logits(context, last, logits);
  context.device.ops().rms_norm(context, last, target->final_norm(),
                                static_cast<float>(config.rms_norm_eps), normed, {});
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> states, device.to_host<float>(captured));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> host_normed, device.to_host<float>(normed));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> host_logits, device.to_host<float>(logits));

  Report report;
  PERCHERON_RETURN_IF_ERROR(compare_rope(expected, config, report));
  for (int64_t k = 0; k < slots; ++k) {
    PERCHERON_RETURN_IF_ERROR(compare(expected, fmt::format("hidden.{}", k), tolerance,
                                      slot_of(states, slots, k, hidden), report));
  }
  PERCHERON_RETURN_IF_ERROR(compare(expected, "norm_out", tolerance, host_normed, report));
  PERCHERON_RETURN_IF_ERROR(compare(expected, "logits", tolerance, host_logits, report));
  return report;
}

Result<Report> run_unsupported_target(const std::string& path, DeviceId) {
  const Result<ModelConfig> config = read_model_config(system_files(), path);
  if (config.ok()) {
    return failed_precondition(path + " was read, though it must be refused");
  }
  const std::string file = join_path(path, "config.json");
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, system_files().read_text(file));
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json object, parse_json(text, file));
  // The message must name some key of the config together with the value it has there.
  const std::string& message = config.status().message();
  bool named = false;
  const auto visit = [&](const auto& self, const nlohmann::json& node) -> void {
    if (!node.is_object()) return;
    for (const auto& [key, value] : node.items()) {
      self(self, value);
      if (value.is_structured()) continue;
      named = named || (message.find('"' + key + '"') != std::string::npos &&
                        message.find(value.dump()) != std::string::npos);
    }
  };
  visit(visit, object);
  Report report;
  expect_equal(report, "refused: " + message, named, true);
  return report;
}

}  // namespace percheron::golden

#include "tests/golden/drafter_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/json.h"
#include "tests/golden/tensors.h"

namespace percheron::golden {
namespace {

constexpr double kLossTolerance = 2e-6;
constexpr double kGradientTolerance = 1e-5;  // relative to the tensor's largest
constexpr double kGradientToleranceAbsolute = 1e-6;

const std::map<std::string, TeacherLoss>& teacher_losses() {
  static const std::map<std::string, TeacherLoss> table = {
      {"soft_ce", TeacherLoss::kSoftCrossEntropy},
      {"kl_div", TeacherLoss::kKlDivergence},
      {"rkl", TeacherLoss::kReverseKl},
      {"reverse_kl", TeacherLoss::kReverseKl},
      {"jsd", TeacherLoss::kJensenShannon},
      {"ce", TeacherLoss::kTeacherArgmax},
      {"ce_teacher_argmax", TeacherLoss::kTeacherArgmax},
      {"tv", TeacherLoss::kTotalVariation},
      {"nla", TeacherLoss::kNegativeLogAccept},
      {"lk_hybrid", TeacherLoss::kHybrid},
  };
  return table;
}

const std::map<std::string, Denominator>& denominators() {
  static const std::map<std::string, Denominator> table = {
      {"batch_times_tokens", Denominator::kAll},     {"masked_sum", Denominator::kValid},
      {"masked_sum_plus_1e-5", Denominator::kValid}, {"valid", Denominator::kValid},
      {"supervised", Denominator::kSupervised},      {"weight_sum", Denominator::kWeights},
      {"batch_size", Denominator::kDocuments},
  };
  return table;
}

template <class T>
Result<T> look_up(const std::map<std::string, T>& table, const std::string& key,
                  const std::string& value) {
  const auto found = table.find(value);
  if (found == table.end()) {
    return invalid_argument(fmt::format("metadata {} '{}' is not known", key, value));
  }
  return found->second;
}

// A loss by name, or a mixture {"ce": 0.1, "tv": 0.9}.
Status read_loss(const std::string& name, LossConfig& loss) {
  if (name.starts_with("{")) {
    PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json mixture, parse_json(name, "loss"));
    for (const auto& [term, value] : mixture.items()) {
      PERCHERON_ASSIGN_OR_RETURN(const TeacherLoss kind, look_up(teacher_losses(), "loss", term));
      PERCHERON_ASSIGN_OR_RETURN(const double weight, json_get<double>(mixture, term, "loss"));
      loss.mixture.push_back({kind, weight});
    }
    return ok_status();
  }
  PERCHERON_ASSIGN_OR_RETURN(loss.teacher_loss, look_up(teacher_losses(), "loss", name));
  return ok_status();
}

Status read_body(DrafterStep& step) {
  ModelConfig& body = step.config.body;
  body.model_type = "llama";
  body.hidden_size = step.integer("hidden_size", 0);
  body.intermediate_size = step.integer("intermediate_size", 0);
  body.num_hidden_layers = step.integer("num_hidden_layers", 1);
  body.num_attention_heads = step.integer("num_attention_heads", 0);
  body.num_key_value_heads = step.integer("num_key_value_heads", 0);
  body.head_dim = step.integer("head_dim", 0);
  body.vocab_size = step.integer("vocab_size", 0);
  body.max_position_embeddings = step.integer("max_position_embeddings", 4096);
  PERCHERON_ASSIGN_OR_RETURN(body.rms_norm_eps, metadata_number(step.file, "rms_norm_eps"));
  PERCHERON_ASSIGN_OR_RETURN(body.rope.theta, metadata_number(step.file, "rope_theta"));
  body.rope.original_max_position_embeddings = body.max_position_embeddings;
  for (const auto& [name, view] : step.file.tensors()) {
    body.qk_norm = body.qk_norm || name.ends_with("q_norm.weight");
  }
  step.config.target_hidden_size = body.hidden_size;
  step.config.draft_vocab_size = step.integer("draft_vocab_size", body.vocab_size);
  return ok_status();
}

std::vector<int32_t> document_offsets(int64_t batch, int64_t tokens,
                                      const std::vector<int64_t>& document_ids) {
  std::vector<int32_t> offsets = {0};
  for (int64_t i = 1; i < batch * tokens; ++i) {
    const bool starts =
        i % tokens == 0 || (!document_ids.empty() && document_ids[i] != document_ids[i - 1]);
    if (starts) offsets.push_back(static_cast<int32_t>(i));
  }
  offsets.push_back(static_cast<int32_t>(batch * tokens));
  return offsets;
}

Result<Tensor> to_device(GoldenDevice& device, const std::vector<float>& values,
                         std::initializer_list<int64_t> shape) {
  Context context = device.context();
  PERCHERON_ASSIGN_OR_RETURN(Tensor tensor, context.device.make_tensor(DType::kF32, shape));
  if (tensor.view().elements() != static_cast<int64_t>(values.size())) {
    return invalid_argument(
        fmt::format("{} elements do not fill {}", values.size(), describe(tensor.view())));
  }
  context.device.copy_bytes(context.stream, tensor.view().data(), values.data(),
                            tensor.view().bytes());
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return tensor;
}

// Our name of a parameter as the file spells it.
std::string name_in_file(const DrafterStep& step, const std::string& kind, std::string name) {
  if (step.file.contains(kind + name) || !name.starts_with("midlayer.")) return kind + name;
  return kind + "layers.0." + name.substr(std::strlen("midlayer."));
}

}  // namespace

std::string DrafterStep::text(const std::string& key, const std::string& otherwise) const {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? otherwise : found->second;
}

int64_t DrafterStep::integer(const std::string& key, int64_t otherwise) const {
  const std::string value = text(key);
  if (value.empty() || value == "None") return otherwise;
  if (value == "True" || value == "true") return 1;
  return static_cast<int64_t>(std::strtod(value.c_str(), nullptr));
}

Result<DrafterStep> open_drafter_step(const std::string& path) {
  DrafterStep step;
  PERCHERON_ASSIGN_OR_RETURN(step.file, SafetensorsFile::open(system_files(), path));
  PERCHERON_RETURN_IF_ERROR(read_body(step));
  const std::string denominator = step.text("denominator");
  PERCHERON_ASSIGN_OR_RETURN(step.loss.denominator,
                             look_up(denominators(), "denominator", denominator));
  step.loss.denominator_epsilon = denominator.ends_with("plus_1e-5") ? 1e-5 : 0.0;
  std::string loss = step.text("loss");
  if (loss.ends_with("_dpace")) {
    step.loss.position_weight = PositionWeight::kDpace;
    loss.resize(loss.size() - std::strlen("_dpace"));
  }
  PERCHERON_RETURN_IF_ERROR(read_loss(loss, step.loss));
  return step;
}

Result<Features> golden_features(const DrafterStep& step, const std::string& prefix,
                                 const std::string& states, const std::string& last) {
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView ids, step.file.tensor(prefix + "input_ids"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens,
                             read_integers(step.file, prefix + "input_ids"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<int64_t> mask,
                             read_integers(step.file, prefix + "loss_mask"));
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> captured, read_floats(step.file, states));
  std::vector<float> outputs;
  std::vector<int64_t> document_ids;
  if (!last.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(outputs, read_floats(step.file, last));
  }
  if (step.file.contains(prefix + "document_ids")) {
    PERCHERON_ASSIGN_OR_RETURN(document_ids, read_integers(step.file, prefix + "document_ids"));
  }
  const auto hidden = static_cast<size_t>(step.config.target_hidden_size);
  if (tokens.empty() || ids.rank() != 2 || mask.size() != tokens.size() || hidden < 1 ||
      captured.size() % (tokens.size() * hidden) != 0 ||
      (!last.empty() && outputs.size() != tokens.size() * hidden) ||
      (!document_ids.empty() && document_ids.size() != tokens.size())) {
    return invalid_argument(fmt::format("{}: its rows and states do not fit {} {}",
                                        step.file.path(), prefix + "input_ids", describe(ids)));
  }
  Features features;
  MicroBatch& batch = features.batch;
  batch.token_ids.assign(tokens.begin(), tokens.end());
  batch.loss_mask.assign(mask.begin(), mask.end());
  batch.offsets = document_offsets(ids.dim(0), ids.dim(1), document_ids);
  for (size_t d = 0; d + 1 < batch.offsets.size(); ++d) batch.sample_ids.push_back(d);
  features.dtype = DType::kF32;
  features.hidden_size = step.config.target_hidden_size;
  const size_t rows = tokens.size(), width = captured.size() / rows;
  features.has_last = !last.empty();
  features.slots = static_cast<int64_t>(width / hidden) + (features.has_last ? 1 : 0);
  for (size_t i = 0; i < rows; ++i) {
    std::vector<float> row(captured.begin() + i * width, captured.begin() + (i + 1) * width);
    if (features.has_last) {
      row.insert(row.end(), outputs.begin() + i * hidden, outputs.begin() + (i + 1) * hidden);
    }
    const std::byte* bytes = reinterpret_cast<const std::byte*>(row.data());
    features.hidden_states.insert(features.hidden_states.end(), bytes,
                                  bytes + row.size() * sizeof(float));
  }
  return features;
}

Result<GoldenTarget> golden_target(GoldenDevice& device, const DrafterStep& step,
                                   const std::string& embedding, const std::string& head,
                                   const std::string& norm) {
  const int64_t hidden = step.config.body.hidden_size, vocabulary = step.config.body.vocab_size;
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> table, read_floats(step.file, embedding));
  PERCHERON_ASSIGN_OR_RETURN(std::vector<float> rows, read_floats(step.file, head));
  std::vector<float> weight(static_cast<size_t>(hidden), 1.0f);
  if (!norm.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(weight, read_floats(step.file, norm));
  }
  rows.resize(static_cast<size_t>(vocabulary * hidden), 0.0f);
  GoldenTarget target;
  PERCHERON_ASSIGN_OR_RETURN(target.embedding, to_device(device, table, {vocabulary, hidden}));
  PERCHERON_ASSIGN_OR_RETURN(target.head, to_device(device, rows, {vocabulary, hidden}));
  PERCHERON_ASSIGN_OR_RETURN(target.final_norm, to_device(device, weight, {hidden}));
  target.parts = {target.embedding, target.head, target.final_norm, step.config.body.rms_norm_eps};
  return target;
}

Status set_parameters(GoldenDevice& device, const DrafterStep& step, Drafter& drafter) {
  Context context = device.context();
  for (const auto& parameter : drafter.parameters()) {
    const std::string name = name_in_file(step, "param.", parameter->name);
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> values, read_floats(step.file, name));
    const TensorView view = parameter->value.view();
    if (view.elements() != static_cast<int64_t>(values.size())) {
      return invalid_argument(
          fmt::format("{} has {} elements, ours {}", name, values.size(), describe(view)));
    }
    context.device.copy_bytes(context.stream, view.data(), values.data(), view.bytes());
    PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  }
  drafter.weights_changed(context);
  return context.stream.wait_idle();
}

Status compare_step(GoldenDevice& device, const DrafterStep& step, Drafter& drafter,
                    const StepSums& sums, const std::string& expected, Report& report) {
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> loss, read_floats(step.file, expected));
  report.differences.push_back({expected, std::abs(sums.loss / sums.weight - loss[0]),
                                kLossTolerance * std::max(1.0f, std::abs(loss[0]))});
  size_t compared = 0;
  for (const auto& parameter : drafter.parameters()) {
    if (!parameter->trainable) continue;
    const std::string name = name_in_file(step, "grad.", parameter->name);
    if (!step.file.contains(name)) {
      expect_equal(report, name + " in the file", false, true);
      continue;
    }
    PERCHERON_ASSIGN_OR_RETURN(const std::vector<float> golden, read_floats(step.file, name));
    PERCHERON_ASSIGN_OR_RETURN(std::vector<float> ours,
                               device.to_host<float>(parameter->gradient.view()));
    double largest = 0;
    for (float& value : ours) value = static_cast<float>(value / sums.weight);
    for (const float value : golden) largest = std::max<double>(largest, std::abs(value));
    report.differences.push_back(
        {name, largest_difference(ours, golden),
         std::max(kGradientToleranceAbsolute, kGradientTolerance * largest)});
    ++compared;
  }
  size_t gradients = 0;
  for (const auto& [name, view] : step.file.tensors()) gradients += name.starts_with("grad.");
  expect_equal(report, "number of gradients", compared, gradients);
  return ok_status();
}

}  // namespace percheron::golden

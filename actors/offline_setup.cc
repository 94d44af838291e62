#include "actors/offline_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/run_fingerprint.h"
#include "base/units.h"

namespace percheron {
namespace {

LastSlot last_slot(proto::Features::FromLast given) {
  switch (given) {
    case proto::Features::NONE: return LastSlot::kNone;
    case proto::Features::BEFORE_NORM: return LastSlot::kBeforeNorm;
    case proto::Features::AFTER_NORM: return LastSlot::kAfterNorm;
  }
  return LastSlot::kNone;
}

std::string count(int64_t n) { return format_count(static_cast<uint64_t>(n)); }

}  // namespace

Status check_offline_settings(const proto::Run& run, const PlanOptions& data,
                              const ModelConfig& target) {
  const proto::Features& given = run.features();
  if (!given.from().empty() && is_padded(data.order)) {
    return invalid_argument(fmt::format(
        "features.from is for packed samples, but data.order {} pads them: set data.order to "
        "packed",
        epoch_order_name(data.order)));
  }
  for (const int64_t state : given.from_capture()) {
    if (state >= 0 && state <= target.num_hidden_layers) continue;
    return invalid_argument(fmt::format(
        "features.from_capture names state {}, the target has states 0 (embedding) to {} (after "
        "its last layer)",
        state, target.num_hidden_layers));
  }
  if (given.has_from_last() && given.from_capture().empty()) {
    return invalid_argument(
        "features.from_last says what the slot after those of features.from_capture is: give both");
  }
  return ok_status();
}

Result<std::unique_ptr<OfflineFeatures>> open_offline_features(const RunSetup& setup,
                                                               FileSystem& files,
                                                               const std::string& target_hash,
                                                               const std::string& run_digest) {
  const proto::Features& given = setup.config.features();
  if (given.from().empty()) return std::unique_ptr<OfflineFeatures>();
  OfflineOptions options;
  options.directories.assign(given.from().begin(), given.from().end());
  options.shape = setup.features;
  options.capture = setup.drafter.capture;
  options.target_layers = setup.target.num_hidden_layers;
  options.target_vocab_size = setup.target.vocab_size;
  options.fingerprint = feature_fingerprint(setup, target_hash);
  options.run_fingerprint = run_digest;
  options.peer_capture.assign(given.from_capture().begin(), given.from_capture().end());
  options.peer_last = last_slot(given.from_last());
  options.whole_samples_only = setup.target.rope.type == RopeType::kDynamic;
  return OfflineFeatures::open(files, std::move(options), *setup.data.train, setup.data.selection);
}

Status tell_final_norm(Context& context, const RunSetup& setup, const Target& target,
                       OfflineFeatures& offline) {
  if (setup.config.features().from_last() != proto::Features::AFTER_NORM) return ok_status();
  const ConstTensorView norm = target.final_norm();
  std::vector<float> weight(static_cast<size_t>(norm.elements()));
  context.device.copy_bytes(context.stream, weight.data(), norm.data(), norm.bytes());
  PERCHERON_RETURN_IF_ERROR(context.stream.wait_idle());
  return offline.set_final_norm(weight);
}

bool target_must_run(const RunSetup& setup, const OfflineFeatures* offline) {
  return offline == nullptr || offline->coverage().missing() > 0 || setup.data.held_out != nullptr;
}

std::string coverage_text(const RunSetup& setup, const OfflineCoverage& coverage) {
  const auto& from = setup.config.features().from();
  std::string text =
      fmt::format("{} of {} samples lie in {} ({}), {} are computed", count(coverage.found),
                  count(coverage.samples), fmt::join(from.begin(), from.end(), ", "),
                  format_bytes(coverage.file_bytes), count(coverage.missing()));
  const bool checked = coverage.peer_rows > 0;
  if (checked) {
    text += fmt::format(
        "; before the first step the target runs over {} of their rows, to check that the slots "
        "hold what features.from_capture and features.from_last say",
        count(coverage.peer_rows));
  }
  if (coverage.missing() == 0) {
    if (setup.data.held_out) {
      text += fmt::format("; the target {}runs over held-out samples only", checked ? "then " : "");
    } else {
      text += fmt::format("; the target's layers are not {} unless a file fails",
                          checked ? "kept" : "loaded");
    }
  }
  return text;
}

}  // namespace percheron

#include "actors/capture_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <span>

#include "actors/run_fingerprint.h"
#include "base/hash.h"
#include "base/units.h"

namespace percheron {
namespace {

// As long as any target's hash.
constexpr std::string_view kHashStandIn = "00000000000000000000000000000000";
// Of the file that says what the directory holds, beside the fingerprint.
constexpr uint64_t kSetFileBytes = 4096;

std::string count(int64_t n) { return format_count(static_cast<uint64_t>(n)); }

struct PlannedUnit {
  CaptureUnit unit;
  int64_t tokens = 0;
  uint64_t bytes = 0;
};

// The unit that begins at sample `begin` of the selection.
PlannedUnit next_unit(const RunSetup& setup, const CaptureOptions& options, const CapturePlan& plan,
                      size_t begin) {
  const std::vector<int32_t>& lengths = setup.data.selection.lengths;
  PlannedUnit planned{{begin, begin}, 0, 0};
  const bool shards = options.layout == CaptureLayout::kShards;
  for (size_t& end = planned.unit.end; end < lengths.size(); ++end) {
    const int64_t tokens = planned.tokens + lengths[end];
    const auto documents = static_cast<int64_t>(end - begin) + 1;
    const uint64_t bytes =
        shards ? shard_file_bytes(plan.shape, tokens, documents, plan.origin)
               : planned.bytes + sample_file_bytes(plan.shape, lengths[end], plan.origin);
    const bool full =
        shards ? bytes > options.shard_bytes || tokens > std::numeric_limits<int32_t>::max()
               : tokens > setup.data.options.token_budget;
    if (full && end > begin) break;
    planned.tokens = tokens;
    planned.bytes = bytes;
  }
  return planned;
}

}  // namespace

Result<CapturePlan> plan_capture(const RunSetup& setup, const CaptureOptions& options) {
  if (options.layout == CaptureLayout::kShards && options.shard_bytes == 0) {
    return invalid_argument("--shard-bytes is 0: a shard holds at least one sample");
  }
  CapturePlan plan;
  plan.shape = setup.features;
  if (options.last == CaptureLast::kAlways && !plan.shape.has_last) {
    plan.shape.has_last = true;
    ++plan.shape.slots;
  }
  plan.origin = {setup.drafter.capture, plan.shape.has_last,
                 feature_fingerprint(setup, std::string(kHashStandIn))};
  plan.bytes = plan.bytes_whole = kSetFileBytes + 2 * plan.origin.fingerprint.text().size();
  const size_t samples = setup.data.selection.samples.size();
  bool fits = true;
  for (size_t begin = 0; begin < samples;) {
    const PlannedUnit next = next_unit(setup, options, plan, begin);
    begin = next.unit.end;
    plan.bytes_whole += next.bytes;
    fits = fits && (options.bytes_max == 0 || plan.bytes + next.bytes <= options.bytes_max);
    const auto documents = static_cast<int64_t>(next.unit.end - next.unit.begin);
    if (!fits) {
      plan.left_out += documents;
      continue;
    }
    plan.units.push_back(next.unit);
    plan.samples += documents;
    plan.tokens += next.tokens;
    plan.bytes += next.bytes;
  }
  if (plan.left_out == 0) return plan;
  if (options.over_budget == OverBudget::kCaptureWhatFits && !plan.units.empty()) return plan;
  return resource_exhausted(fmt::format(
      "the features of {} samples take {}, --bytes-max is {}: raise it{}",
      count(plan.samples + plan.left_out), format_bytes(plan.bytes_whole),
      format_bytes(options.bytes_max),
      plan.units.empty()
          ? ", not one file fits"
          : fmt::format(", or capture only the first {} samples with --partial; train computes "
                        "the rest",
                        count(plan.samples))));
}

std::string CapturePlan::text(const CaptureOptions& options) const {
  const bool shards = options.layout == CaptureLayout::kShards;
  std::string text =
      fmt::format("capture     states {}{}, {}, {} a token\n", fmt::join(origin.capture, "/"),
                  shape.has_last ? " and the last before the final norm" : "",
                  dtype_name(shape.dtype), format_bytes(shape.bytes(1, 0) - shape.bytes(0, 0)));
  text += fmt::format("files       {} samples, {} tokens in {} {}: at most {}{}\n", count(samples),
                      count(tokens), count(shards ? static_cast<int64_t>(units.size()) : samples),
                      shards ? "shards" : "files", format_bytes(bytes),
                      options.bytes_max > 0
                          ? fmt::format(" of --bytes-max {}", format_bytes(options.bytes_max))
                          : "");
  if (left_out > 0) {
    text += fmt::format("note        {} samples don't fit into the budget and are left out\n",
                        count(left_out));
  }
  return text;
}

Fingerprint capture_settings(const RunSetup& setup, const CaptureOptions& options,
                             const std::string& target_hash) {
  const bool shards = options.layout == CaptureLayout::kShards;
  Fingerprint settings = feature_fingerprint(setup, target_hash);
  settings.set("layout", shards ? "shards" : "samples");
  settings.set("last", setup.features.has_last || options.last == CaptureLast::kAlways
                           ? "before_final_norm"
                           : "none");
  settings.set("top1", setup.features.has_top1 ? "stored" : "none");
  if (!shards) return settings;
  // Which samples a shard holds follows from these.
  const SampleSelection& chosen = setup.data.selection;
  ContentHash hash;
  hash.add(std::as_bytes(std::span(chosen.samples)));
  hash.add(std::as_bytes(std::span(chosen.lengths)));
  settings.set("shard_bytes", std::to_string(options.shard_bytes));
  settings.set("samples", hash.hex());
  return settings;
}

}  // namespace percheron

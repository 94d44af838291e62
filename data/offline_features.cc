#include "data/offline_features.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/log.h"
#include "data/micro_batch.h"

namespace percheron {
namespace {

// Unusable samples that are told one by one.
constexpr int64_t kWarningsMax = 20;

std::span<const uint32_t> tokens_of(const MicroBatch& batch, int32_t document) {
  const auto begin = static_cast<size_t>(batch.offsets[static_cast<size_t>(document)]);
  const auto end = static_cast<size_t>(batch.offsets[static_cast<size_t>(document) + 1]);
  return std::span(batch.token_ids).subspan(begin, end - begin);
}

void put_value(float value, DType dtype, std::byte* out, int64_t i) {
  if (dtype == DType::kF32) {
    std::memcpy(out + i * 4, &value, 4);
  } else {
    const uint16_t bits = bf16_from_float(value);
    std::memcpy(out + i * 2, &bits, 2);
  }
}

bool all_within(std::span<const int32_t> ids, int64_t low, int64_t high) {
  return std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return low <= id && id < high; });
}

}  // namespace

OfflineFeatures::OfflineFeatures(FileSystem& files, OfflineOptions options)
    : files_(files), options_(std::move(options)), fingerprint_text_(options_.fingerprint.text()) {
  const int64_t captured = static_cast<int64_t>(options_.capture.size());
  own_slots_.slots.resize(static_cast<size_t>(options_.shape.slots));
  std::iota(own_slots_.slots.begin(), own_slots_.slots.end(), int64_t{0});
  own_slots_with_last_ = own_slots_;
  own_slots_.file_slots = captured;
  own_slots_with_last_.file_slots = captured + 1;
}

Result<std::unique_ptr<OfflineFeatures>> OfflineFeatures::open(FileSystem& files,
                                                               OfflineOptions options,
                                                               const TokenDataset& train,
                                                               const SampleSelection& selection) {
  std::unique_ptr<OfflineFeatures> result(new OfflineFeatures(files, std::move(options)));
  PERCHERON_RETURN_IF_ERROR(result->state_peer_slots());
  for (const std::string& path : result->options_.directories) {
    PERCHERON_RETURN_IF_ERROR(result->add_directory(path).with_context("features.from"));
  }
  for (uint32_t d = 0; d < result->directories_.size(); ++d) {
    PERCHERON_RETURN_IF_ERROR(result->probe(d, train, selection).with_context("features.from"));
  }
  result->measure(selection);
  return result;
}

Status OfflineFeatures::state_peer_slots() {
  const std::vector<int64_t>& held = options_.peer_capture;
  if (held.empty()) return ok_status();
  peer_slots_.file_slots =
      static_cast<int64_t>(held.size()) + (options_.peer_last == LastSlot::kNone ? 0 : 1);
  for (const int64_t state : options_.capture) {
    const auto slot = std::find(held.begin(), held.end(), state);
    if (slot == held.end())
      return invalid_argument("drafter.capture names state " + std::to_string(state) +
                              ", which features.from_capture lacks: capture the same states, or "
                              "state what the files hold");
    peer_slots_.slots.push_back(slot - held.begin());
  }
  if (!options_.shape.has_last) return ok_status();
  const auto last = std::find(held.begin(), held.end(), options_.target_layers);
  if (options_.peer_last != LastSlot::kNone) {
    peer_slots_.slots.push_back(static_cast<int64_t>(held.size()));
    peer_slots_.divide_last = options_.peer_last == LastSlot::kAfterNorm;
  } else if (last != held.end()) {
    peer_slots_.slots.push_back(last - held.begin());
  } else {
    return invalid_argument(
        "the loss reads the target's last state, which the files of features.from hold nowhere: "
        "say features.from_last: before_norm (vLLM, speculators) or after_norm (SpecForge) if "
        "their last slot is it, or use loss.kind: data_labels");
  }
  return ok_status();
}

Status OfflineFeatures::add_directory(const std::string& path) {
  const Result<std::vector<std::string>> listed = files_.list(path);
  if (!listed.ok()) {
    return Status(listed.status().code(),
                  listed.status().message() +
                      "; name directories that `percheron capture` or another program has filled, "
                      "or leave features.from out: then the target runs");
  }
  const std::vector<std::string>& names = *listed;
  const auto number = static_cast<uint32_t>(directories_.size());
  directories_.push_back({path, 0});
  bool any = false;
  for (const std::string& name : names) {
    if (is_shard_name(name)) {
      PERCHERON_RETURN_IF_ERROR(add_shard(number, join_path(path, name)));
      any = true;
    } else if (const int64_t sample = sample_of_file(name); sample >= 0) {
      places_.insert({static_cast<uint64_t>(sample), {number, nullptr, 0}});
      any = true;
    }
  }
  if (any) return ok_status();
  std::string hint;
  for (const std::string& name : names) {
    if (name.ends_with(".zst") || name.ends_with(".ckpt") || name.ends_with(".pt")) {
      hint = "; " + name + " is not read: rewrite it as hs_N.safetensors, uncompressed";
      break;
    }
  }
  return invalid_argument(path +
                          " holds no features: neither hs_N.safetensors nor "
                          "features-NNNNN.safetensors" +
                          hint);
}

Status OfflineFeatures::add_shard(uint32_t directory, const std::string& path) {
  Result<FeatureFile> opened = FeatureFile::open(files_, path);
  if (!opened.ok()) {
    // Its samples are computed: a damaged shard costs time, not the run.
    log_warning("{}: its samples are not taken from there", opened.status().message());
    return ok_status();
  }
  const auto shard = std::make_shared<const FeatureFile>(std::move(opened).value());
  PERCHERON_RETURN_IF_ERROR(slots_of(*shard).status());
  for (int32_t d = 0; d < static_cast<int32_t>(shard->sample_ids().size()); ++d) {
    const int64_t sample = shard->sample_ids()[static_cast<size_t>(d)];
    if (sample >= 0) places_.insert({static_cast<uint64_t>(sample), {directory, shard, d}});
  }
  return ok_status();
}

void OfflineFeatures::measure(const SampleSelection& selection) {
  coverage_.samples = static_cast<int64_t>(selection.samples.size());
  for (size_t i = 0; i < selection.samples.size(); ++i) {
    const uint64_t sample = selection.samples[i];
    const auto place = places_.find(sample);
    if (place == places_.end()) continue;
    const int64_t rows = selection.lengths[i];
    if (const auto& shard = place->second.shard) {
      if (shard->rows(place->second.document) < rows) continue;
    } else {
      const auto bytes =
          static_cast<uint64_t>(rows * directories_[place->second.directory].row_bytes);
      const Result<uint64_t> size = files_.file_size(path_of(sample, place->second));
      if (!size.ok() || *size < bytes) continue;
    }
    ++coverage_.found;
    coverage_.file_bytes += options_.shape.hidden_bytes(rows);
  }
}

Status OfflineFeatures::set_final_norm(std::span<const float> weight) {
  PERCHERON_CHECK(static_cast<int64_t>(weight.size()) == options_.shape.hidden_size,
                  "the final norm has a weight for each channel");
  inverse_norm_.clear();
  for (const float w : weight) {
    if (w == 0)
      return invalid_argument(
          "features.from_last: after_norm can't be read: the target's final norm has a weight of "
          "0, so that the state before it is lost; capture it before the norm");
    inverse_norm_.push_back(1.0f / w);
  }
  return ok_status();
}

std::string OfflineFeatures::path_of(uint64_t sample, const Place& place) const {
  return place.shard ? place.shard->path()
                     : join_path(directories_[place.directory].path, sample_file_name(sample));
}

Result<const OfflineFeatures::SlotMap*> OfflineFeatures::slots_of(const FeatureFile& file) const {
  if (const std::string* text = file.fingerprint_text()) {
    if (*text != fingerprint_text_) {
      PERCHERON_ASSIGN_OR_RETURN(const Fingerprint saved, Fingerprint::parse(*text, file.path()));
      PERCHERON_RETURN_IF_ERROR(
          compare_fingerprints(saved, file.path(), options_.fingerprint, "this run"));
    }
    if (options_.shape.has_last && !file.has_last())
      return failed_precondition(file.path() +
                                 " was captured without the target's last state, which the loss of "
                                 "this run reads: capture again with --last");
    return file.has_last() ? &own_slots_with_last_ : &own_slots_;
  }
  if (!options_.peer_capture.empty()) return &peer_slots_;
  return invalid_argument(
      file.path() + " does not say what its " + std::to_string(file.slots()) +
      " slots hold: state it in features.from_capture: [j, ...], as in drafter.capture, and "
      "features.from_last: before_norm (vLLM, speculators) or after_norm (SpecForge) if one more "
      "slot is the target's last state");
}

Result<OfflineFeatures::Look> OfflineFeatures::look(uint64_t sample,
                                                    std::span<const uint32_t> tokens) const {
  Look seen;
  const auto place = places_.find(sample);
  if (place == places_.end()) return seen;
  seen.file = place->second.shard;
  seen.document = place->second.document;
  if (!seen.file) {
    Result<FeatureFile> opened = FeatureFile::open(files_, path_of(sample, place->second));
    if (!opened.ok()) {
      seen.verdict =
          opened.status().code() == StatusCode::kNotFound ? Verdict::kAbsent : Verdict::kUnusable;
      seen.why = opened.status().message();
      return seen;
    }
    if (opened->documents() != 1 || !opened->sample_ids().empty()) {
      seen.verdict = Verdict::kUnusable;
      seen.why = opened->path() + " has offsets, though its name is that of one sample's file";
      return seen;
    }
    seen.file = std::make_shared<const FeatureFile>(std::move(opened).value());
  }
  PERCHERON_ASSIGN_OR_RETURN(seen.slots, slots_of(*seen.file));
  check(seen, tokens);
  return seen;
}

void OfflineFeatures::check(Look& look, std::span<const uint32_t> tokens) const {
  const FeatureFile& file = *look.file;
  const auto reject = [&](Verdict verdict, const std::string& why) {
    look.verdict = verdict;
    look.why = file.path() + " " + why;
  };
  const auto wanted = static_cast<int64_t>(tokens.size());
  const int64_t rows = file.rows(look.document);
  const bool own = file.fingerprint_text() != nullptr;
  if (file.hidden_size() != options_.shape.hidden_size)
    return reject(Verdict::kUnusable, "has states of " + std::to_string(file.hidden_size()) +
                                          " channels, the target's have " +
                                          std::to_string(options_.shape.hidden_size));
  if (file.slots() != look.slots->file_slots)
    return reject(Verdict::kUnusable,
                  "has " + std::to_string(file.slots()) + " slots, but " +
                      std::to_string(look.slots->file_slots) +
                      (own ? " follow from its metadata"
                           : " follow from features.from_capture and features.from_last"));
  if (own && file.dtype() != options_.shape.dtype)
    return reject(Verdict::kUnusable, "is " + std::string(dtype_name(file.dtype())) +
                                          ", its fingerprint says " +
                                          std::string(dtype_name(options_.shape.dtype)));
  if (!file.begins_with(look.document, tokens))
    return reject(Verdict::kOtherTokens, "holds other tokens than the sample of its number");
  if (rows < wanted || (options_.whole_samples_only && rows != wanted))
    return reject(Verdict::kTooShort, "has " + std::to_string(rows) + " rows, the run trains on " +
                                          std::to_string(wanted));
  if (first_not_finite(file.states(look.document).rows(0, wanted)) >= 0 ||
      becomes_infinite(look, wanted))
    return reject(Verdict::kUnusable, "holds a state that is not finite");
  if (!all_within(file.top1(look.document), -1, options_.target_vocab_size))
    return reject(Verdict::kUnusable, "holds a top1 that is no id of the target's vocabulary");
  look.verdict = Verdict::kFound;
}

float OfflineFeatures::value(const Look& look, const ConstTensorView& states, int64_t row,
                             size_t slot, int64_t channel) const {
  const std::vector<int64_t>& slots = look.slots->slots;
  const int64_t at = (row * states.dim(1) + slots[slot]) * states.dim(2) + channel;
  const bool divide = look.slots->divide_last && slot + 1 == slots.size() && !inverse_norm_.empty();
  return divide ? float_at(states, at) * inverse_norm_[static_cast<size_t>(channel)]
                : float_at(states, at);
}

// A finite f32 may be beyond bf16's largest number.
bool OfflineFeatures::becomes_infinite(const Look& look, int64_t rows) const {
  const ConstTensorView states = look.file->states(look.document);
  if (options_.shape.dtype == DType::kF32 || states.dtype() != DType::kF32) return false;
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t s = 0; s < look.slots->slots.size(); ++s) {
      for (int64_t c = 0; c < states.dim(2); ++c) {
        const uint16_t bits = bf16_from_float(value(look, states, row, s, c));
        if ((bits & 0x7f80u) == 0x7f80u) return true;
      }
    }
  }
  return false;
}

void OfflineFeatures::copy(const Look& look, int64_t begin, int64_t rows,
                           Features& features) const {
  const FeatureShape& shape = options_.shape;
  const ConstTensorView states = look.file->states(look.document).rows(0, rows);
  std::byte* out = features.hidden_states.data() + shape.hidden_bytes(begin);
  const bool same_dtype = states.dtype() == shape.dtype;
  const size_t row_bytes = static_cast<size_t>(shape.hidden_size) * dtype_bytes(shape.dtype);
  const auto* in = static_cast<const std::byte*>(states.data());
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t s = 0; s < look.slots->slots.size(); ++s, out += row_bytes) {
      const int64_t first = (row * states.dim(1) + look.slots->slots[s]) * shape.hidden_size;
      const bool divide = look.slots->divide_last && s + 1 == look.slots->slots.size();
      if (same_dtype && !divide) {
        std::memcpy(out, in + static_cast<size_t>(first) * dtype_bytes(shape.dtype), row_bytes);
        continue;
      }
      for (int64_t c = 0; c < shape.hidden_size; ++c) {
        put_value(value(look, states, row, s, c), shape.dtype, out, c);
      }
    }
  }
  if (!shape.has_top1) return;
  const std::span<const int32_t> top1 = look.file->top1(look.document);
  std::fill_n(features.top1.begin() + begin, rows, -1);
  // The last row's next token is another document's, also where the file goes on.
  if (!top1.empty()) std::copy_n(top1.begin(), rows - 1, features.top1.begin() + begin);
}

void OfflineFeatures::count(const Look& look, uint64_t sample) {
  const std::lock_guard lock(mutex_);
  switch (look.verdict) {
    case Verdict::kFound: ++counters_.read; return;
    case Verdict::kAbsent: ++counters_.absent; return;
    case Verdict::kTooShort: ++counters_.too_short; return;
    case Verdict::kOtherTokens: ++counters_.other_tokens; break;
    case Verdict::kUnusable: ++counters_.unusable; break;
  }
  const int64_t bad = counters_.other_tokens + counters_.unusable;
  if (bad > kWarningsMax) return;
  log_warning("sample {} is not taken from its file: {}{}", sample, look.why,
              bad == kWarningsMax ? "; more such samples are only counted" : "");
}

Result<TakenFeatures> OfflineFeatures::take(const MicroBatch& batch) {
  PERCHERON_CHECK(!peer_slots_.divide_last || !inverse_norm_.empty(),
                  "states after the norm are read once the norm is known");
  TakenFeatures taken;
  std::vector<Look> looks;
  std::vector<int32_t> found;
  for (int32_t d = 0; d < static_cast<int32_t>(batch.documents()); ++d) {
    const uint64_t sample = batch.sample_ids[static_cast<size_t>(d)];
    PERCHERON_ASSIGN_OR_RETURN(Look seen, look(sample, tokens_of(batch, d)));
    count(seen, sample);
    if (seen.verdict == Verdict::kFound) {
      found.push_back(d);
      looks.push_back(std::move(seen));
    } else {
      taken.missing.push_back(d);
    }
  }
  Features& features = taken.features;
  features.batch = select_documents(batch, found);
  features.dtype = options_.shape.dtype;
  features.slots = options_.shape.slots;
  features.hidden_size = options_.shape.hidden_size;
  features.has_last = options_.shape.has_last;
  features.fingerprint = options_.run_fingerprint;
  features.hidden_states.resize(options_.shape.hidden_bytes(features.batch.tokens()));
  if (options_.shape.has_top1) features.top1.resize(features.batch.token_ids.size());
  for (size_t i = 0; i < looks.size(); ++i) {
    const int64_t begin = features.batch.offsets[i];
    copy(looks[i], begin, features.batch.offsets[i + 1] - begin, features);
    if (options_.shape.has_top1 && looks[i].file->top1(looks[i].document).empty()) {
      taken.without_top1.push_back(static_cast<int32_t>(i));
    }
  }
  return taken;
}

OfflineCounters OfflineFeatures::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace percheron

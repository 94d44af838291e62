#include "data/feature_block.h"

#include <charconv>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "data/safetensors.h"

namespace percheron {
namespace {

constexpr const char* kFormat = "percheron.feature_block.v1";

template <class T>
std::vector<T> values_of(const ConstTensorView& view) {
  const T* data = view.as<T>();
  return std::vector<T>(data, data + view.elements());
}

Result<int64_t> number_in(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  int64_t value = 0;
  if (found != file.metadata().end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return value;
  }
  return data_loss(file.path() + ": the metadata `" + key + "` is not a number");
}

Status check(const Features& features, const std::string& path) {
  const MicroBatch& batch = features.batch;
  const auto tokens = static_cast<size_t>(batch.tokens());
  const auto documents = static_cast<size_t>(batch.documents());
  bool sound = batch.loss_mask.size() == tokens && batch.offsets.size() == documents + 1 &&
               batch.offsets.front() == 0 && batch.offsets.back() == static_cast<int32_t>(tokens) &&
               (batch.padding.empty() || batch.padding.size() == documents) &&
               (features.top1.empty() || features.top1.size() == tokens);
  for (size_t d = 0; sound && d < documents; ++d) sound = batch.offsets[d] < batch.offsets[d + 1];
  if (sound) return ok_status();
  return data_loss(path + ": the tensors of a block of features contradict each other");
}

}  // namespace

Result<SafetensorsContent> lay_out_feature_block(const Features& features) {
  const MicroBatch& batch = features.batch;
  static_assert(sizeof(batch.sample_ids[0]) == sizeof(int64_t));
  const std::span samples(reinterpret_cast<const int64_t*>(batch.sample_ids.data()),
                          batch.sample_ids.size());
  std::vector<NamedTensor> tensors = {
      {"hidden_states", features.hidden_view()},
      {"token_ids", view_of(std::span<const uint32_t>(batch.token_ids))},
      {"loss_mask", view_of(std::span<const uint8_t>(batch.loss_mask))},
      {"offsets", view_of(std::span<const int32_t>(batch.offsets))},
      {"sample_ids", view_of(samples)}};
  if (!features.top1.empty())
    tensors.push_back({"top1", view_of(std::span<const int32_t>(features.top1))});
  if (!batch.padding.empty())
    tensors.push_back({"padding", view_of(std::span<const int32_t>(batch.padding))});
  return lay_out_safetensors("a block of features", tensors,
                             {{"format", kFormat},
                              {"epoch", std::to_string(batch.id.epoch)},
                              {"index", std::to_string(batch.id.index)},
                              {"has_last", features.has_last ? "1" : "0"},
                              {"fingerprint", features.fingerprint}});
}

Result<Features> read_feature_block(FileSystem& files, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(files, path));
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kFormat) {
    return data_loss(path + " is no block of features of this version");
  }
  const int64_t any[] = {-1};
  const int64_t any_states[] = {-1, -1, -1};
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView token_ids,
                             file.tensor("token_ids", DType::kU32, any));
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView loss_mask,
                             file.tensor("loss_mask", DType::kU8, any));
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView offsets,
                             file.tensor("offsets", DType::kI32, any));
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView samples,
                             file.tensor("sample_ids", DType::kI64, any));
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView states, file.tensor("hidden_states"));
  PERCHERON_ASSIGN_OR_RETURN(
      const ConstTensorView checked,
      file.tensor("hidden_states", states.dtype(), std::span<const int64_t>(any_states)));
  Features features;
  PERCHERON_ASSIGN_OR_RETURN(features.batch.id.epoch, number_in(file, "epoch"));
  PERCHERON_ASSIGN_OR_RETURN(features.batch.id.index, number_in(file, "index"));
  PERCHERON_ASSIGN_OR_RETURN(const int64_t has_last, number_in(file, "has_last"));
  features.batch.token_ids = values_of<uint32_t>(token_ids);
  features.batch.loss_mask = values_of<uint8_t>(loss_mask);
  features.batch.offsets = values_of<int32_t>(offsets);
  for (int64_t id : values_of<int64_t>(samples)) {
    features.batch.sample_ids.push_back(static_cast<uint64_t>(id));
  }
  if (file.contains("padding")) {
    PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView padding,
                               file.tensor("padding", DType::kI32, any));
    features.batch.padding = values_of<int32_t>(padding);
  }
  if (file.contains("top1")) {
    PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView top1, file.tensor("top1", DType::kI32, any));
    features.top1 = values_of<int32_t>(top1);
  }
  features.dtype = checked.dtype();
  features.slots = checked.dim(1);
  features.hidden_size = checked.dim(2);
  features.has_last = has_last != 0;
  features.fingerprint = file.metadata().at("fingerprint");
  PERCHERON_RETURN_IF_ERROR(check(features, path));
  if (checked.dim(0) != features.batch.tokens()) {
    return data_loss(path + ": the states are of another number of tokens");
  }
  const auto* bytes = static_cast<const std::byte*>(checked.data());
  features.hidden_states.assign(bytes, bytes + checked.bytes());
  return features;
}

}  // namespace percheron

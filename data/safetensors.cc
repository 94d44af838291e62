#include "data/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "data/safetensors_content.h"

namespace percheron {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

using Json = nlohmann::json;
using Bytes = std::span<const std::byte>;

constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 8;
constexpr const char* kMetadataName = "__metadata__";

// The header is an object of objects with at most an array inside.
constexpr int kHeaderDepthMax = 3;

constexpr std::array kDTypes = {DType::kF32, DType::kBf16, DType::kF16, DType::kF64, DType::kI64,
                                DType::kI32, DType::kU32,  DType::kU8,  DType::kBool};

std::optional<DType> dtype_of_name(std::string_view name) {
  for (const DType dtype : kDTypes) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// A tensor as the header describes it; offsets count from the end of the header.
struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// A mapped file some of whose tensors begin at addresses that their element type does not allow;
// holds aligned copies of those.
class RealignedFile final : public MappedFile {
 public:
  explicit RealignedFile(std::shared_ptr<MappedFile> file) : file_(std::move(file)) {}

  std::span<const std::byte> bytes() const override { return file_->bytes(); }

  const void* copy(Bytes bytes) {
    copies_.emplace_back((bytes.size() + kAlignment - 1) / kAlignment);
    std::memcpy(copies_.back().data(), bytes.data(), bytes.size());
    return copies_.back().data();
  }

 private:
  std::shared_ptr<MappedFile> file_;
  std::vector<std::vector<uint64_t>> copies_;
};

Status bad_file(const std::string& path, const std::string& what) {
  return data_loss(path + " is no valid safetensors file: " + what);
}

Status bad_tensor(const std::string& path, const std::string& name, const std::string& what) {
  return bad_file(path, "tensor '" + name + "': " + what);
}

// Parses the header's JSON; refuses names that occur twice, which a plain parser would merge.
Result<Json> parse_header(const std::string& path, std::string_view text) {
  std::vector<std::set<std::string>> names;
  std::string problem;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kHeaderDepthMax) problem = "the header is nested too deeply";
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end && !names.empty()) names.pop_back();
    if (event == Json::parse_event_t::key && !names.empty()) {
      const std::string& name = parsed.get_ref<const std::string&>();
      if (!names.back().insert(name).second) problem = "the name '" + name + "' occurs twice";
    }
    return problem.empty();
  };
  Json header = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (!problem.empty()) return bad_file(path, problem);
  if (header.is_discarded()) return bad_file(path, "its header is not JSON");
  if (!header.is_object()) return bad_file(path, "its header is not a JSON object");
  return header;
}

Result<std::map<std::string, std::string>> parse_metadata(const std::string& path,
                                                          const Json& value) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) return bad_file(path, "__metadata__ is not an object");
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) return bad_file(path, "metadata '" + name + "' is not a string");
    metadata[name] = text.get_ref<const std::string&>();
  }
  return metadata;
}

// Reads one tensor's description and checks it for itself, not yet against its neighbours.
Result<Entry> parse_entry(const std::string& path, const std::string& name, const Json& value) {
  Entry entry;
  entry.name = name;
  const auto field = [&](const char* key) {
    return value.is_object() && value.contains(key) ? value.at(key) : Json();
  };
  const Json dtype = field("dtype"), shape = field("shape"), offsets = field("data_offsets");
  if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2)
    return bad_tensor(path, name, "needs dtype, shape and two data_offsets");

  const auto& dtype_text = dtype.get_ref<const std::string&>();
  const std::optional<DType> known = dtype_of_name(dtype_text);
  if (!known) return bad_tensor(path, name, "dtype '" + dtype_text + "' is not supported");
  entry.dtype = *known;

  if (shape.size() > ConstTensorView::kRankMax)
    return bad_tensor(path, name,
                      "has rank " + std::to_string(shape.size()) + ", at most 4 is supported");
  int64_t bytes = static_cast<int64_t>(dtype_bytes(entry.dtype));
  bool empty = false;
  for (const Json& extent : shape) {
    if (!extent.is_number_unsigned() ||
        extent.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return bad_tensor(path, name, "shape " + shape.dump() + " has an extent out of range");
    entry.shape.push_back(extent.get<int64_t>());
    if (entry.shape.back() == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, entry.shape.back(), &bytes)) {
      return bad_tensor(path, name, "the product of shape " + shape.dump() + " overflows");
    }
  }
  if (empty) bytes = 0;

  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
    return bad_tensor(path, name, "data_offsets " + offsets.dump() + " are out of range");
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.end < entry.begin || entry.end - entry.begin != static_cast<uint64_t>(bytes))
    return bad_tensor(path, name,
                      "data_offsets " + offsets.dump() + " do not hold shape " + shape.dump() +
                          " of " + dtype_text + ", " + std::to_string(bytes) + " bytes");
  return entry;
}

// The tensors must cover the bytes after the header exactly, without overlap or hole.
Status check_layout(const std::string& path, std::vector<Entry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.end > data_bytes)
      return bad_tensor(path, entry.name,
                        "ends at byte " + std::to_string(entry.end) +
                            " of the data, but there are only " + std::to_string(data_bytes) +
                            " (is the file truncated?)");
    if (entry.begin != covered)
      return bad_tensor(path, entry.name,
                        "begins at byte " + std::to_string(entry.begin) +
                            (entry.begin < covered ? ", inside the tensor before it, which ends at "
                                                   : ", leaving a hole after ") +
                            std::to_string(covered));
    covered = entry.end;
  }
  if (covered != data_bytes)
    return bad_file(
        path, std::to_string(data_bytes - covered) + " bytes after the last tensor belong to none");
  return ok_status();
}

Status check_names(const std::string& path, std::span<const NamedTensor> tensors) {
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == kMetadataName)
      return invalid_argument("cannot write " + path + ": a tensor may not be named __metadata__");
    if (!names.insert(tensor.name).second)
      return invalid_argument("cannot write " + path + ": two tensors are named '" + tensor.name +
                              "'");
    if (!tensor.view.contiguous())
      return invalid_argument("cannot write " + path + ": tensor '" + tensor.name +
                              "' is not contiguous");
  }
  return ok_status();
}

// The length and the header, padded so that the data begins at a multiple of 8 bytes.
Result<std::string> make_header(const std::string& path, std::span<const NamedTensor> tensors,
                                const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  uint64_t begin = 0;
  for (const NamedTensor& tensor : tensors) {
    const uint64_t end = begin + tensor.view.bytes();
    const auto shape = tensor.view.shape();
    header[tensor.name] = {{"dtype", dtype_name(tensor.view.dtype())},
                           {"shape", std::vector<int64_t>(shape.begin(), shape.end())},
                           {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    return invalid_argument("cannot write " + path +
                            ": a name or metadata text is not UTF-8: " + error.what());
  }
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (text.size() > kHeaderBytesMax)
    return invalid_argument("cannot write " + path + ": its header would exceed 100 MB");
  const uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + text;
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(FileSystem& files, const std::string& path) {
  SafetensorsFile result;
  result.path_ = path;
  PERCHERON_ASSIGN_OR_RETURN(result.file_, files.map(path));
  const Bytes bytes = result.file_->bytes();
  if (bytes.size() < kLengthBytes)
    return bad_file(path,
                    "it has " + std::to_string(bytes.size()) + " bytes, too few for a header");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kHeaderBytesMax)
    return bad_file(path, "its header claims " + std::to_string(length) + " bytes, over 100 MB");
  if (length > bytes.size() - kLengthBytes)
    return bad_file(path, "its header claims " + std::to_string(length) + " bytes, the file has " +
                              std::to_string(bytes.size()));

  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  PERCHERON_ASSIGN_OR_RETURN(const Json header, parse_header(path, text));
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataName) {
      PERCHERON_ASSIGN_OR_RETURN(result.metadata_, parse_metadata(path, value));
    } else {
      PERCHERON_ASSIGN_OR_RETURN(Entry entry, parse_entry(path, name, value));
      entries.push_back(std::move(entry));
    }
  }
  const Bytes data = bytes.subspan(kLengthBytes + length);
  PERCHERON_RETURN_IF_ERROR(check_layout(path, entries, data.size()));

  std::shared_ptr<RealignedFile> realigned;
  for (const Entry& entry : entries) {
    const Bytes part = data.subspan(entry.begin, entry.end - entry.begin);
    const void* address = part.data();
    if (reinterpret_cast<uintptr_t>(address) % dtype_bytes(entry.dtype) != 0) {
      if (!realigned) realigned = std::make_shared<RealignedFile>(result.file_);
      address = realigned->copy(part);
    }
    result.tensors_.emplace(entry.name, ConstTensorView(address, entry.dtype, entry.shape));
  }
  if (realigned) result.file_ = realigned;
  return result;
}

Result<ConstTensorView> SafetensorsFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return not_found(path_ + " has no tensor '" + name + "'");
  return found->second;
}

Result<ConstTensorView> SafetensorsFile::tensor(const std::string& name, DType dtype,
                                                std::span<const int64_t> shape) const {
  PERCHERON_ASSIGN_OR_RETURN(const ConstTensorView view, tensor(name));
  bool fits = view.dtype() == dtype && view.rank() == static_cast<int>(shape.size());
  for (int i = 0; fits && i < view.rank(); ++i) fits = shape[i] == -1 || shape[i] == view.dim(i);
  if (!fits) {
    std::string wanted = "[";
    for (size_t i = 0; i < shape.size(); ++i) {
      if (i > 0) wanted += ", ";
      wanted += shape[i] == -1 ? "any" : std::to_string(shape[i]);
    }
    wanted += "] " + std::string(dtype_name(dtype));
    return invalid_argument(path_ + ": tensor '" + name + "' is " + describe(view) + ", expected " +
                            wanted);
  }
  return view;
}

Result<SafetensorsContent> lay_out_safetensors(const std::string& path,
                                               std::span<const NamedTensor> tensors,
                                               const std::map<std::string, std::string>& metadata) {
  PERCHERON_RETURN_IF_ERROR(check_names(path, tensors));
  // Wide elements first: then every tensor begins at a multiple of its element size.
  std::vector<NamedTensor> ordered(tensors.begin(), tensors.end());
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return dtype_bytes(a.view.dtype()) > dtype_bytes(b.view.dtype());
  });
  SafetensorsContent content;
  PERCHERON_ASSIGN_OR_RETURN(content.header, make_header(path, ordered, metadata));
  content.bytes = content.header.size();
  for (const NamedTensor& tensor : ordered) {
    content.tensors.push_back(tensor.view);
    content.bytes += tensor.view.bytes();
  }
  return content;
}

Status write_safetensors(FileSystem& files, const std::string& path,
                         std::span<const NamedTensor> tensors,
                         const std::map<std::string, std::string>& metadata) {
  PERCHERON_ASSIGN_OR_RETURN(const SafetensorsContent content,
                             lay_out_safetensors(path, tensors, metadata));
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.create(path));
  const auto write_all = [&]() -> Status {
    PERCHERON_RETURN_IF_ERROR(file->append(std::as_bytes(std::span(content.header))));
    for (const ConstTensorView& tensor : content.tensors) {
      if (tensor.bytes() == 0) continue;
      PERCHERON_RETURN_IF_ERROR(
          file->append({static_cast<const std::byte*>(tensor.data()), tensor.bytes()}));
    }
    PERCHERON_RETURN_IF_ERROR(file->sync());
    return file->close();
  };
  const Status status = write_all();
  if (!status.ok()) {
    file.reset();
    // The write's own error is the one to report.
    [[maybe_unused]] const Status ignored = files.remove_all(path);
  }
  return status;
}

}  // namespace percheron

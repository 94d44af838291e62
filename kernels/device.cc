#include "kernels/device.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"
#include "base/units.h"

namespace percheron {
namespace {

constexpr size_t kAlignmentBytes = 64;
constexpr size_t kArenaBlockBytesMin = size_t{4} << 20;
/// An arena that was reserved grows by this share of its largest block.
constexpr size_t kGrowthShare = 16;
constexpr size_t kBytesMax = size_t{1} << 62;

struct KindName {
  DeviceKind kind;
  std::string_view name;
};
constexpr KindName kKindNames[] = {{DeviceKind::kCpu, "cpu"},
                                   {DeviceKind::kCuda, "cuda"},
                                   {DeviceKind::kEmulated, "emulated"},
                                   {DeviceKind::kPlanning, "planning"}};

// What a tensor takes; sizes beyond any memory, and negative ones, give kBytesMax.
size_t bytes_of(DType dtype, std::span<const int64_t> shape) {
  size_t bytes = dtype_bytes(dtype);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(extent), &bytes)) {
      return kBytesMax;
    }
  }
  return std::min(bytes, kBytesMax);
}

[[noreturn]] void end_out_of_memory(const Device& device, const Status& status, size_t in_use) {
  std::fprintf(stderr,
               "percheron: out of memory on %s, with %zu bytes of activations in use: %s; give it "
               "fewer tokens at a time (data.token_budget, loss.workspace_bytes)\n",
               to_string(device.info().id).c_str(), in_use, status.message().c_str());
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

Result<DeviceId> parse_device_id(std::string_view name) {
  const auto refused = [&](std::string_view why) {
    return invalid_argument("device '" + std::string(name) + "' " + std::string(why) +
                            "; write KIND:INDEX with cpu, cuda, emulated or planning");
  };
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos) return refused("has no colon");
  const std::string_view kind = name.substr(0, colon), digits = name.substr(colon + 1);
  const auto* known = std::ranges::find(kKindNames, kind, &KindName::name);
  if (known == std::end(kKindNames)) return refused("is of an unknown kind");
  DeviceId id{known->kind, 0};
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), id.index);
  if (error != std::errc() || end != digits.end() || id.index < 0) return refused("has no index");
  return id;
}

std::string to_string(DeviceId id) {
  const auto* known = std::ranges::find(kKindNames, id.kind, &KindName::kind);
  return std::string(known->name) + ":" + std::to_string(id.index);
}

Result<Tensor> Device::make_tensor(DType dtype, std::span<const int64_t> shape) {
  PERCHERON_ASSIGN_OR_RETURN(Buffer buffer, allocate(bytes_of(dtype, shape)));
  return Tensor(std::move(buffer), dtype, shape);
}

Status Stream::begin_recording() {
  return failed_precondition("this device's streams record nothing");
}

Result<std::unique_ptr<Graph>> Stream::end_recording() {
  return failed_precondition("nothing was recorded: this device's streams can't");
}

void Stream::launch(Graph&) { fail(internal_error("a graph on a device that has none")); }

Status Arena::reserve(size_t bytes) {
  PERCHERON_CHECK(in_use_ == 0, "an arena is filled before it is used");
  blocks_.clear();
  ++generation_;
  PERCHERON_ASSIGN_OR_RETURN(Buffer block, device_.allocate(bytes));
  blocks_.push_back(std::move(block));
  block_ = offset_ = 0;
  reserved_ = bytes;
  return ok_status();
}

size_t Arena::bytes_held() const {
  size_t bytes = 0;
  for (const Buffer& block : blocks_) bytes += block.bytes();
  return bytes;
}

const void* Arena::position() const {
  if (block_ >= blocks_.size()) return nullptr;
  return static_cast<const char*>(blocks_[block_].data()) + offset_;
}

size_t Arena::next_block_bytes() const {
  size_t largest = 0;
  for (const Buffer& block : blocks_) largest = std::max(largest, block.bytes());
  // What was reserved was meant to be enough: a little more is, and there may not be as much again.
  return std::max(kArenaBlockBytesMin, reserved_ > 0 ? largest / kGrowthShare : largest);
}

void Arena::add_block(size_t bytes) {
  auto block = device_.allocate(bytes);
  if (!block.ok()) end_out_of_memory(device_, block.status(), in_use_);
  blocks_.push_back(std::move(*block));
  ++generation_;
  if (reserved_ == 0) return;
  ++device_.counters().scratch_growths;
  if (std::exchange(growth_told_, true)) return;
  log_warning(
      "{}: a micro-batch needs more scratch memory than the {} that were planned for the largest "
      "one: {} more are taken, which waits for the device; a smaller data.token_budget or "
      "loss.workspace_bytes takes less",
      to_string(device_.info().id), format_bytes(reserved_), format_bytes(bytes));
}

TensorView Arena::take(DType dtype, std::initializer_list<int64_t> shape) {
  const size_t wanted = bytes_of(dtype, {shape.begin(), shape.size()});
  const size_t bytes =
      std::max(kAlignmentBytes, (wanted + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
  size_t block_bytes = next_block_bytes();
  if (in_use_ == 0 && blocks_.size() > 1) {
    // Nothing is in use: one block as large as all of them keeps the steady state in one piece.
    block_bytes = bytes_held();
    blocks_.clear();
  }
  if (in_use_ == 0) block_ = offset_ = 0;
  while (block_ < blocks_.size() && offset_ + bytes > blocks_[block_].bytes()) {
    ++block_;
    offset_ = 0;
  }
  if (block_ == blocks_.size()) {
    add_block(std::max(bytes, block_bytes));
    offset_ = 0;
  }
  TensorView view(static_cast<char*>(blocks_[block_].data()) + offset_, dtype, shape);
  offset_ += bytes;
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  return view;
}

}  // namespace percheron

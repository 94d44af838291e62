#include "model/state_upload.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace percheron {

StateUpload::StateUpload(Device& device) : device_(device), stream_(device.make_stream()) {
  for (Slot& slot : slots_) {
    slot.copied = device.make_event();
    slot.read = device.make_event();
  }
}

Result<std::unique_ptr<StateUpload>> StateUpload::make(Device& device, size_t bytes_max) {
  std::unique_ptr<StateUpload> upload(new StateUpload(device));
  for (Slot& slot : upload->slots_) {
    PERCHERON_ASSIGN_OR_RETURN(slot.memory, device.allocate(bytes_max));
    PERCHERON_ASSIGN_OR_RETURN(slot.staging, device.allocate_host(bytes_max));
  }
  return upload;
}

StateUpload::Slot* StateUpload::find(const Features* features) {
  const auto slot = std::ranges::find_if(
      slots_, [=](const Slot& s) { return s.features.lock().get() == features; });
  return slot == slots_.end() ? nullptr : &*slot;
}

Status StateUpload::put(const FeaturesPtr& features) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (features->hidden_states.size() > slots_[0].memory.bytes()) return ok_status();
    if (find(features.get()) != nullptr) return ok_status();
    slot = &*std::ranges::min_element(slots_, {}, [](const Slot& s) { return s.turn; });
    slot->features = features;
    slot->turn = ++turns_;
    slot->filling = true;
  }
  const Status status = fill(*slot, *features);
  {
    const std::lock_guard lock(mutex_);
    slot->filling = false;
    if (!status.ok()) slot->features.reset();
  }
  filled_.notify_all();
  return status;
}

Status StateUpload::fill(Slot& slot, const Features& features) {
  // Copies of micro-batches before, which were read long ago: so staging memory is free.
  PERCHERON_RETURN_IF_ERROR(stream_->wait_idle());
  const size_t bytes = features.hidden_states.size();
  std::memcpy(slot.staging.data(), features.hidden_states.data(), bytes);
  stream_->wait_for(*slot.read);
  device_.copy_bytes(*stream_, slot.memory.data(), slot.staging.data(), bytes);
  stream_->record(*slot.copied);
  return ok_status();
}

bool StateUpload::copy_to(Context& context, const Features& features, TensorView to) {
  std::unique_lock lock(mutex_);
  Slot* slot = find(&features);
  if (slot != nullptr) filled_.wait(lock, [slot] { return !slot->filling; });
  if (slot == nullptr || slot->features.lock().get() != &features) {
    ++missed_;
    return false;
  }
  ++found_;
  context.stream.wait_for(*slot->copied);
  context.device.copy_bytes(context.stream, to.data(), slot->memory.data(), to.bytes());
  context.stream.record(*slot->read);
  slot->features.reset();
  return true;
}

int64_t StateUpload::found() const {
  const std::lock_guard lock(mutex_);
  return found_;
}

int64_t StateUpload::missed() const {
  const std::lock_guard lock(mutex_);
  return missed_;
}

}  // namespace percheron

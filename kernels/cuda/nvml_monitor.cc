// NVML by its C interface, which is stable and needs no header: what is used of nvml.h stands here.

#include <dlfcn.h>

#include <array>

#include "kernels/device_health.h"

namespace percheron {
namespace {

using NvmlDevice = void*;
using NvmlEventSet = void*;
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlGpuIsLost = 15;
constexpr unsigned kNvmlTemperatureGpu = 0;
constexpr unsigned kNvmlCorrected = 0, kNvmlUncorrected = 1, kNvmlSinceLoad = 0;
constexpr unsigned long long kNvmlXid = 8;  // NOLINT: the interface's type
constexpr unsigned kNvmlTextMax = 96;
/// Events that one reading takes at most: a broken card may make many.
constexpr int kEventsMax = 64;
constexpr double kMilliwatts = 1000;

using Count = unsigned long long;  // NOLINT: the interface's type
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
struct NvmlMemory {
  Count total, free, used;
};
struct NvmlEvent {
  NvmlDevice device;
  Count type, data;
  unsigned gpu_instance, compute_instance;
};

/// A function of the library; a driver that is too old does not have all of them.
template <class... Arguments>
struct Function {
  int (*call)(Arguments...) = nullptr;

  void find(void* library, const char* name) {
    call = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  }
  /// Whether it is there and succeeds.
  bool operator()(Arguments... arguments) const {
    return call != nullptr && call(arguments...) == kNvmlSuccess;
  }
};

struct Nvml {
  explicit Nvml(void* library) {
    init.find(library, "nvmlInit_v2");
    shutdown.find(library, "nvmlShutdown");
    count.find(library, "nvmlDeviceGetCount_v2");
    device.find(library, "nvmlDeviceGetHandleByIndex_v2");
    name.find(library, "nvmlDeviceGetName");
    uuid.find(library, "nvmlDeviceGetUUID");
    utilization.find(library, "nvmlDeviceGetUtilizationRates");
    memory.find(library, "nvmlDeviceGetMemoryInfo");
    power.find(library, "nvmlDeviceGetPowerUsage");
    power_limit.find(library, "nvmlDeviceGetEnforcedPowerLimit");
    temperature.find(library, "nvmlDeviceGetTemperature");
    ecc_errors.find(library, "nvmlDeviceGetTotalEccErrors");
    make_events.find(library, "nvmlEventSetCreate");
    watch.find(library, "nvmlDeviceRegisterEvents");
    next_event.find(library, "nvmlEventSetWait_v2");
    free_events.find(library, "nvmlEventSetFree");
  }

  Function<> init, shutdown;
  Function<unsigned*> count;
  Function<unsigned, NvmlDevice*> device;
  Function<NvmlDevice, char*, unsigned> name, uuid;
  Function<NvmlDevice, NvmlUtilization*> utilization;
  Function<NvmlDevice, NvmlMemory*> memory;
  Function<NvmlDevice, unsigned*> power, power_limit;  // milliwatts
  Function<NvmlDevice, unsigned, unsigned*> temperature;
  Function<NvmlDevice, unsigned, unsigned, Count*> ecc_errors;
  Function<NvmlEventSet*> make_events;
  Function<NvmlDevice, Count, NvmlEventSet> watch;
  Function<NvmlEventSet, NvmlEvent*, unsigned> next_event;
  Function<NvmlEventSet> free_events;
};

class NvmlMonitor final : public HealthMonitor {
 public:
  /// `nvml` is initialised; this shuts it down.
  explicit NvmlMonitor(const Nvml& nvml) : nvml_(nvml) {
    unsigned count = 0;
    if (!nvml_.count(&count)) count = 0;
    if (!nvml_.make_events(&events_)) events_ = nullptr;
    for (unsigned i = 0; i < count; ++i) {
      NvmlDevice device = nullptr;
      if (!nvml_.device(i, &device)) device = nullptr;  // A card that is lost keeps its place.
      const bool watched =
          device != nullptr && events_ != nullptr && nvml_.watch(device, kNvmlXid, events_);
      devices_.push_back({device, watched, 0});
      cards_.push_back({text(nvml_.name, device), text(nvml_.uuid, device)});
    }
  }
  ~NvmlMonitor() override {
    if (events_ != nullptr) (void)nvml_.free_events(events_);
    (void)nvml_.shutdown();  // There is nobody left to tell.
  }
  NvmlMonitor(const NvmlMonitor&) = delete;
  NvmlMonitor& operator=(const NvmlMonitor&) = delete;

  const std::vector<Card>& cards() const override { return cards_; }

  Result<CardHealth> read(size_t card) override {
    PERCHERON_CHECK(card < devices_.size(), "no such card");
    take_events();
    const Watched& watched = devices_[card];
    const NvmlDevice device = watched.device;
    NvmlMemory memory{};
    const int answer = device == nullptr || nvml_.memory.call == nullptr
                           ? kNvmlGpuIsLost
                           : nvml_.memory.call(device, &memory);
    if (answer == kNvmlGpuIsLost) {
      return unavailable("the driver has lost card " + std::to_string(card) + " (" +
                         cards_[card].name + ")");
    }
    CardHealth health;
    if (answer == kNvmlSuccess) {
      health.memory_used_bytes = memory.used;
      health.memory_bytes = memory.total;
    }
    NvmlUtilization utilization{};
    if (nvml_.utilization(device, &utilization)) health.utilization = utilization.gpu / 100.0;
    unsigned value = 0;
    if (nvml_.power(device, &value)) health.power_watts = value / kMilliwatts;
    if (nvml_.power_limit(device, &value)) health.power_limit_watts = value / kMilliwatts;
    if (nvml_.temperature(device, kNvmlTemperatureGpu, &value)) {
      health.temperature_celsius = static_cast<int>(value);
    }
    Count errors = 0;
    if (nvml_.ecc_errors(device, kNvmlCorrected, kNvmlSinceLoad, &errors)) {
      health.ecc_corrected = errors;
    }
    if (nvml_.ecc_errors(device, kNvmlUncorrected, kNvmlSinceLoad, &errors)) {
      health.ecc_uncorrected = errors;
    }
    if (watched.watched) health.last_xid = watched.last_xid;
    return health;
  }

 private:
  struct Watched {
    NvmlDevice device;
    bool watched;
    uint64_t last_xid;
  };

  static std::string text(const Function<NvmlDevice, char*, unsigned>& function,
                          NvmlDevice device) {
    std::array<char, kNvmlTextMax> buffer{};
    if (device == nullptr || !function(device, buffer.data(), kNvmlTextMax - 1)) return "";
    return buffer.data();
  }

  /// What has happened since the last time, without waiting.
  void take_events() {
    if (events_ == nullptr) return;
    NvmlEvent event{};
    for (int i = 0; i < kEventsMax && nvml_.next_event(events_, &event, 0); ++i) {
      for (Watched& device : devices_) {
        if (device.device == event.device && event.type == kNvmlXid) device.last_xid = event.data;
      }
    }
  }

  Nvml nvml_;
  NvmlEventSet events_ = nullptr;
  std::vector<Watched> devices_;
  std::vector<Card> cards_;
};

}  // namespace

Result<std::unique_ptr<HealthMonitor>> open_nvml_monitor(const std::string& library) {
  // Never closed: NVML keeps threads of its own in some versions.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* message = dlerror();
    return not_found("no state of NVIDIA cards: " +
                     std::string(message == nullptr ? library + " can't be loaded" : message));
  }
  const Nvml nvml(handle);
  if (nvml.init.call == nullptr) {
    return not_found("no state of NVIDIA cards: " + library + " is no NVML");
  }
  if (const int code = nvml.init.call(); code != kNvmlSuccess) {
    return not_found("no state of NVIDIA cards: nvmlInit answers " + std::to_string(code) +
                     ", as where no driver is loaded");
  }
  return std::unique_ptr<HealthMonitor>(std::make_unique<NvmlMonitor>(nvml));
}

}  // namespace percheron

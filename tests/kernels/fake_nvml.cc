// Stands in for libnvidia-ml.so.1: two cards, the second of which tells little. FAKE_NVML_INIT is
// what nvmlInit answers.

#include <cstdio>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kTimeout = 10, kLost = 15;
int cards[3];                     // their addresses are the handles
[[maybe_unused]] int events_set;  // The old driver has none.
int events_left = 2;

bool is_first(const void* card) { return card == &cards[0]; }

int write(const char* text, char* buffer, unsigned size) {
  std::snprintf(buffer, size, "%s", text);
  return kSuccess;
}

struct Event {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

}  // namespace

extern "C" {

int nvmlInit_v2() {
  events_left = 2;
  return FAKE_NVML_INIT;
}
int nvmlShutdown() { return kSuccess; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** card) {
  *card = &cards[index];
  return kSuccess;
}
int nvmlDeviceGetName(void* card, char* name, unsigned size) {
  return write(is_first(card) ? "NVIDIA H200" : "NVIDIA Old", name, size);
}
int nvmlDeviceGetUUID(void* card, char* uuid, unsigned size) {
  return is_first(card) ? write("GPU-1234", uuid, size) : kNotSupported;
}
int nvmlDeviceGetUtilizationRates(void* card, unsigned* rates) {
  if (!is_first(card)) return kNotSupported;
  rates[0] = 37;
  rates[1] = 99;
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* card, unsigned long long* memory) {
  if (card == &cards[2]) return kLost;
  memory[0] = 150754820096;
  memory[1] = 140017401856;
  memory[2] = 10737418240;
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(void* card, unsigned* milliwatts) {
  *milliwatts = 345600;
  return is_first(card) ? kSuccess : kNotSupported;
}
int nvmlDeviceGetEnforcedPowerLimit(void* card, unsigned* milliwatts) {
  *milliwatts = 700000;
  return is_first(card) ? kSuccess : kNotSupported;
}
int nvmlDeviceGetTemperature(void*, unsigned sensor, unsigned* degrees) {
  *degrees = 52;
  return sensor == 0 ? kSuccess : kNotSupported;
}
#ifndef FAKE_NVML_OLD
int nvmlDeviceGetTotalEccErrors(void* card, unsigned type, unsigned counter,
                                unsigned long long* errors) {
  if (!is_first(card) || counter != 0) return kNotSupported;
  *errors = type == 0 ? 12 : 1;
  return kSuccess;
}
int nvmlEventSetCreate(void** set) {
  *set = &events_set;
  return kSuccess;
}
int nvmlDeviceRegisterEvents(void* card, unsigned long long types, void* set) {
  return is_first(card) && types == 8 && set == &events_set ? kSuccess : kNotSupported;
}
int nvmlEventSetWait_v2(void*, Event* event, unsigned) {
  if (events_left == 0) return kTimeout;
  *event = {&cards[0], 8, events_left == 2 ? 13ull : 79ull, 0, 0};
  --events_left;
  return kSuccess;
}
int nvmlEventSetFree(void*) { return kSuccess; }
#endif

}  // extern "C"

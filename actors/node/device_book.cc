#include "actors/node/device_book.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "actors/card_reader.h"
#include "base/json.h"
#include "base/log.h"
#include "data/transport/deadline.h"
#include "data/transport/file_descriptor.h"

extern char** environ;  // NOLINT: POSIX's

namespace percheron {
namespace {

constexpr auto kLookTimeout = std::chrono::seconds(60);  // a driver may take long to wake up
constexpr auto kHealthInterval = std::chrono::seconds(2);
constexpr size_t kOutputBytesMax = size_t{1} << 20;
constexpr std::string_view kCuda = "cuda:";

// What the process writes until it closes its end, or the time is up.
Result<std::string> read_output(int fd) {
  const Deadline deadline = Deadline::after(kLookTimeout);
  std::string output;
  std::array<char, 4096> buffer;
  while (output.size() < kOutputBytesMax) {
    pollfd ready{fd, POLLIN, 0};
    if (poll(&ready, 1, deadline.poll_ms()) == 0) return unavailable("no answer in a minute");
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return output;
    output.append(buffer.data(), static_cast<size_t>(count));
  }
  return data_loss("more output than devices can have");
}

void add_health(const CardHealth& health, proto::DeviceFacts& facts) {
  facts.clear_memory_used_bytes();
  facts.clear_power_watts();
  facts.clear_utilization();
  facts.clear_temperature_celsius();
  if (health.memory_used_bytes) facts.set_memory_used_bytes(*health.memory_used_bytes);
  if (health.power_watts) facts.set_power_watts(*health.power_watts);
  if (health.utilization) facts.set_utilization(*health.utilization);
  if (health.temperature_celsius) facts.set_temperature_celsius(*health.temperature_celsius);
}

void add_health(CardReader& reader, DeviceFactsMap& devices) {
  for (auto& [name, facts] : devices) {
    if (name.starts_with(kCuda)) add_health(reader.read(name).value_or(CardHealth()), facts);
  }
}

}  // namespace

Result<DeviceFactsMap> parse_devices(const std::string& json) {
  constexpr const char* kWhat = "the list of devices";
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json root, parse_json(json, kWhat));
  PERCHERON_ASSIGN_OR_RETURN(const nlohmann::json* list, json_array(root, "devices", kWhat));
  DeviceFactsMap devices;
  for (const nlohmann::json& entry : *list) {
    PERCHERON_ASSIGN_OR_RETURN(const std::string name,
                               json_get<std::string>(entry, "device", kWhat));
    proto::DeviceFacts& facts = devices[name];
    PERCHERON_ASSIGN_OR_RETURN(*facts.mutable_description(),
                               json_get<std::string>(entry, "description", kWhat));
    PERCHERON_ASSIGN_OR_RETURN(const int64_t threads, json_get<int64_t>(entry, "threads", kWhat));
    PERCHERON_ASSIGN_OR_RETURN(const int64_t bytes,
                               json_get<int64_t>(entry, "memory_bytes", kWhat));
    facts.set_threads(static_cast<int32_t>(threads));
    facts.set_memory_bytes(static_cast<uint64_t>(bytes));
  }
  return devices;
}

DeviceBook::DeviceBook(std::string program)
    : program_(std::move(program)), watcher_([this] { watch(); }) {}

DeviceBook::~DeviceBook() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    if (child_ > 0) kill(child_, SIGKILL);
  }
  ended_.notify_all();
  watcher_.join();
}

Result<std::string> DeviceBook::ask_program() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return unavailable(std::strerror(errno));
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  std::array<std::string, 4> words = {"percheron", "inspect", "--devices", "--json"};
  std::array<char*, 5> arguments{words[0].data(), words[1].data(), words[2].data(), words[3].data(),
                                 nullptr};
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, program_.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return unavailable(program_ + ": " + std::strerror(error));
  {
    const std::lock_guard lock(mutex_);
    child_ = pid;
    if (ending_) kill(pid, SIGKILL);
  }
  writer = FileDescriptor();  // Else the end of the output would never come.
  Result<std::string> output = read_output(reader.get());
  if (!output.ok()) kill(pid, SIGKILL);
  {
    const std::lock_guard lock(mutex_);
    child_ = -1;  // From now on the number may be another's.
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (output.ok() && status != 0) return unavailable("it ended with an error");
  return output;
}

DeviceFactsMap DeviceBook::devices() const {
  const std::lock_guard lock(mutex_);
  return devices_;
}

void DeviceBook::watch() {
  const Result<std::string> output = ask_program();
  Result<DeviceFactsMap> found =
      output.ok() ? parse_devices(*output) : Result<DeviceFactsMap>(output.status());
  if (!found.ok()) {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    return log_warning("this machine's devices are not known: `percheron inspect --devices`: {}",
                       found.status().message());
  }
  const bool has_gpu = found->lower_bound(std::string(kCuda)) != found->end() &&
                       found->lower_bound(std::string(kCuda))->first.starts_with(kCuda);
  std::unique_ptr<CardReader> cards;
  if (has_gpu) {
    Result<std::unique_ptr<CardReader>> opened = CardReader::open();
    if (opened.ok()) {
      cards = std::move(opened).value();
    } else {
      log_warning("no power and load of GPUs: {}", opened.status().message());
    }
  }
  DeviceFactsMap devices = std::move(found).value();
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (cards) {  // The driver may take its time.
      lock.unlock();
      add_health(*cards, devices);
      lock.lock();
    }
    devices_ = devices;
    if (!cards) return;
    ended_.wait_for(lock, kHealthInterval, [this] { return ending_; });
  }
}

}  // namespace percheron

#include "actors/node/process_output.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/log.h"
#include "data/transport/file_descriptor.h"

namespace percheron {
namespace {

constexpr mode_t kLogMode = 0640;

sigset_t reopen_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, kReopenSignal);
  return signals;
}

}  // namespace

Status append_output_to(const std::string& path) {
  const FileDescriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kLogMode));
  if (!file.valid()) return os_error("open " + path, errno);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    if (dup2(file.get(), output) < 0) return os_error("write to " + path, errno);
  }
  return ok_status();
}

// A thread that waits, and no handler: no call of any other thread is interrupted.
OutputReopener::OutputReopener() {
  const char* const path = std::getenv(kOutputVariable);
  if (path == nullptr) return;
  const sigset_t signals = reopen_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this, path = std::string(path), signals] {
    int number = 0;
    while (sigwait(&signals, &number) == 0 && !ending_) {
      const Status opened = append_output_to(path);
      if (!opened.ok()) log_warning("the log stays in its old file: {}", opened.message());
    }
  });
}

OutputReopener::~OutputReopener() {
  if (!thread_.joinable()) return;
  ending_ = true;
  pthread_kill(thread_.native_handle(), kReopenSignal);
  thread_.join();
}

}  // namespace percheron

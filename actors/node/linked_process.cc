#include "actors/node/linked_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

#include <cerrno>
#include <utility>

#include "actors/node/process_output.h"

extern char** environ;

namespace percheron {
namespace {

constexpr mode_t kLogMode = 0640;

std::string how_ended(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("exit status {}", WEXITSTATUS(status));
}

// What a child does between fork and exec.
class Actions {
 public:
  Actions() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~Actions() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;

  int prepare(const std::string& log, int link) {
    int error = posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDONLY, 0);
    if (error == 0) {
      error = posix_spawn_file_actions_addopen(&actions_, 1, log.c_str(),
                                               O_WRONLY | O_CREAT | O_APPEND, kLogMode);
    }
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions_, 1, 2);
    if (error == 0) {
      error = posix_spawn_file_actions_adddup2(&actions_, link, LinkedProcess::kLinkDescriptor);
    }
    // Not every library closes its descriptors on exec, UCX for one.
    if (error == 0) {
      error =
          posix_spawn_file_actions_addclosefrom_np(&actions_, LinkedProcess::kLinkDescriptor + 1);
    }
    // A group of its own: a Ctrl-C in the daemon's terminal is the daemon's to deal with.
    if (error == 0) error = posix_spawnattr_setpgroup(&attributes_, 0);
    sigset_t none, defaults;
    sigemptyset(&none);
    sigaddset(&none, kReopenSignal);
    sigfillset(&defaults);
    if (error == 0) error = posix_spawnattr_setsigmask(&attributes_, &none);
    if (error == 0) error = posix_spawnattr_setsigdefault(&attributes_, &defaults);
    if (error == 0) {
      error = posix_spawnattr_setflags(
          &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    }
    return error;
  }
  int spawn(pid_t* pid, const LinkedProcess::Command& command) {
    std::vector<char*> argv, variables;
    for (const std::string& argument : command.arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    std::string output = std::string(kOutputVariable) + "=" + command.log;
    variables.push_back(output.data());
    for (char** variable = environ; *variable != nullptr; ++variable) {
      variables.push_back(*variable);
    }
    variables.push_back(nullptr);
    return posix_spawn(pid, command.program.c_str(), &actions_, &attributes_, argv.data(),
                       variables.data());
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

Result<std::unique_ptr<LinkedProcess>> LinkedProcess::start(const Command& command,
                                                            FileDescriptor link, OnEnd on_end) {
  // dup2 onto itself would leave it closed on exec.
  if (link.get() == kLinkDescriptor) {
    PERCHERON_ASSIGN_OR_RETURN(FileDescriptor other, link.duplicate());
    link = std::move(other);
  }
  Actions actions;
  pid_t pid = 0;
  int error = actions.prepare(command.log, link.get());
  if (error == 0) error = actions.spawn(&pid, command);
  if (error != 0) return os_error("start " + command.program, error);
  std::unique_ptr<LinkedProcess> child(new LinkedProcess(pid));
  child->reaper_ =
      std::thread([child = child.get(), on_end = std::move(on_end)] { child->reap(on_end); });
  return child;
}

LinkedProcess::~LinkedProcess() { reaper_.join(); }

void LinkedProcess::reap(const OnEnd& on_end) {
  // The process is seen to have ended before its number is given back, so that signal() never
  // reaches another one.
  siginfo_t info = {};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  int status = 0;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  on_end(WIFEXITED(status) && WEXITSTATUS(status) == 0, how_ended(status));
}

void LinkedProcess::signal(int number) {
  const std::lock_guard lock(mutex_);
  if (!ended_) kill(pid_, number);
}

}  // namespace percheron

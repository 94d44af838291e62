#include "tools/python_environment.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace percheron {
namespace {

namespace fs = std::filesystem;

/// The checkout above this program: the nearest folder that holds the preparation package.
fs::path checkout_root() {
  std::error_code ignored;
  fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (; here.has_relative_path(); here = here.parent_path()) {
    if (fs::exists(here / "tools" / "percheron_prepare" / "percheron_prepare", ignored))
      return here;
  }
  return {};
}

std::vector<char*> argument_pointers(std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return pointers;
}

void prepare_environment(const PythonEnvironment& python) {
  if (!python.package_path.empty()) setenv("PYTHONPATH", python.package_path.c_str(), 1);
  setenv("PYTHONUNBUFFERED", "1", 1);
}

std::vector<std::string> command_of(const PythonEnvironment& python,
                                    const std::vector<std::string>& arguments) {
  std::vector<std::string> command{python.interpreter, "-m", "percheron_prepare"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

Result<PythonEnvironment> find_python_environment() {
  PythonEnvironment python;
  const fs::path root = checkout_root();
  if (!root.empty()) python.package_path = (root / "tools" / "percheron_prepare").string();
  std::error_code ignored;
  if (const char* chosen = std::getenv("PERCHERON_PYTHON"); chosen != nullptr && *chosen != '\0') {
    python.interpreter = chosen;
  } else if (!root.empty() && fs::exists(root / ".venv" / "bin" / "python", ignored)) {
    python.interpreter = (root / ".venv" / "bin" / "python").string();
  } else {
    return failed_precondition(
        "no Python environment for tokenizers: run `make python` in the checkout, or set "
        "PERCHERON_PYTHON to an "
        "interpreter that has the packages of tools/percheron_prepare/requirements.txt");
  }
  return python;
}

Result<ChildProcess> ChildProcess::start(const PythonEnvironment& python,
                                         const std::vector<std::string>& arguments) {
  int to_child[2], from_child[2];
  if (pipe(to_child) != 0) return internal_error(fmt::format("pipe: {}", std::strerror(errno)));
  if (pipe(from_child) != 0) {
    close(to_child[0]), close(to_child[1]);
    return internal_error(fmt::format("pipe: {}", std::strerror(errno)));
  }
  std::signal(SIGPIPE, SIG_IGN);  // A child that ended shows as a failed write, not as our death.
  const int pid = fork();
  if (pid < 0) return internal_error(fmt::format("fork: {}", std::strerror(errno)));
  if (pid == 0) {
    dup2(to_child[0], STDIN_FILENO);
    dup2(from_child[1], STDOUT_FILENO);
    for (const int descriptor : {to_child[0], to_child[1], from_child[0], from_child[1]})
      close(descriptor);
    const Status status = exec_python(python, arguments);
    fmt::print(stderr, "error: {}\n", status.message());
    _exit(127);
  }
  close(to_child[0]), close(from_child[1]);
  return ChildProcess(pid, to_child[1], from_child[0]);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::exchange(other.input_, -1)),
      output_(std::exchange(other.output_, -1)),
      pending_(std::move(other.pending_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  close(input_);  // The child ends with its input.
  close(output_);
  waitpid(pid_, nullptr, 0);
}

Status ChildProcess::write_line(const std::string& line) {
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(input_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      return unavailable(fmt::format("the tokenizer process has ended: {}", std::strerror(errno)));
    done += static_cast<size_t>(written);
  }
  return ok_status();
}

Result<std::string> ChildProcess::read_line() {
  while (true) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    char buffer[65536];
    const ssize_t count = read(output_, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return unavailable("the tokenizer process has ended; its message stands above");
    pending_.append(buffer, static_cast<size_t>(count));
  }
}

Status exec_python(const PythonEnvironment& python, const std::vector<std::string>& arguments) {
  prepare_environment(python);
  std::vector<std::string> command = command_of(python, arguments);
  execv(command[0].c_str(), argument_pointers(command).data());
  return not_found(fmt::format("can't run {}: {}", command[0], std::strerror(errno)));
}

}  // namespace percheron

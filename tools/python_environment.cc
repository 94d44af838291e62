#include "tools/python_environment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace percheron {
namespace {

namespace fs = std::filesystem;

/// Where the Python parts of this program lie.
struct PythonFolders {
  fs::path package;                    // holds the folder percheron_prepare; empty: nowhere
  std::vector<fs::path> environments;  // the first that is there is used
  std::string how;                     // one is made
};

/// What users install for themselves alone.
fs::path user_data() {
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data != '\0')
    return data;
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : "/") / ".local" / "share";
}

/// An installed program's are below its prefix; others belong to the checkout above the program,
/// which is the nearest folder that holds the package.
PythonFolders find_folders() {
  std::error_code ignored;
  fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const fs::path prefix = here.parent_path(), installed = prefix / "share" / "percheron" / "python";
  if (fs::exists(installed / "percheron_prepare", ignored)) {
    return {installed,
            {prefix / "lib" / "percheron" / "python", user_data() / "percheron" / "python"},
            fmt::format("run `{}`", (here / "percheron-setup-python").string())};
  }
  const char* const make = "run `make python` in the checkout";
  for (; here.has_relative_path(); here = here.parent_path()) {
    const fs::path package = here / "tools" / "percheron_prepare";
    if (fs::exists(package / "percheron_prepare", ignored))
      return {package, {here / ".venv"}, make};
  }
  return {{}, {}, make};
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// This process's environment with what the Python programs need, as "NAME=value" each.
std::vector<std::string> environment_of(const PythonEnvironment& python) {
  std::vector<std::string> variables{"PYTHONUNBUFFERED=1"};
  if (!python.package_path.empty()) variables.push_back("PYTHONPATH=" + python.package_path);
  // `regenerate` starts this very program to answer prompts.
  std::error_code ignored;
  const fs::path own_path = fs::read_symlink("/proc/self/exe", ignored);
  if (!own_path.empty()) variables.push_back("PERCHERON_PROGRAM=" + own_path.string());
  const size_t own = variables.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const std::string name = variable.substr(0, variable.find('=') + 1);
    const auto set = variables.begin() + static_cast<std::ptrdiff_t>(own);
    if (std::none_of(variables.begin(), set,
                     [&](const std::string& mine) { return mine.starts_with(name); }))
      variables.push_back(variable);
  }
  return variables;
}

/// A pipe that no other child inherits. Its ends close with the object unless taken.
class Pipe {
 public:
  static Result<Pipe> make() {
    Pipe made;
    if (pipe2(made.ends_.data(), O_CLOEXEC) != 0)
      return unavailable(fmt::format("a pipe can't be made: {}", std::strerror(errno)));
    return made;
  }
  Pipe(Pipe&& other) noexcept : ends_(std::exchange(other.ends_, {-1, -1})) {}
  Pipe& operator=(Pipe&&) = delete;
  ~Pipe() {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  int take_read_end() { return std::exchange(ends_[0], -1); }
  int take_write_end() { return std::exchange(ends_[1], -1); }

 private:
  Pipe() = default;
  std::array<int, 2> ends_{-1, -1};
};

std::vector<std::string> command_of(const PythonEnvironment& python,
                                    const std::vector<std::string>& arguments) {
  std::vector<std::string> command{python.interpreter, "-m", "percheron_prepare"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

Result<PythonEnvironment> find_python_environment() {
  PythonEnvironment python;
  const PythonFolders folders = find_folders();
  python.package_path = folders.package.string();
  if (const char* chosen = std::getenv("PERCHERON_PYTHON"); chosen != nullptr && *chosen != '\0') {
    python.interpreter = chosen;
    return python;
  }
  std::error_code ignored;
  for (const fs::path& environment : folders.environments) {
    python.interpreter = (environment / "bin" / "python").string();
    if (fs::exists(python.interpreter, ignored)) return python;
  }
  return failed_precondition(fmt::format(
      "no Python environment for tokenizers: {}, or set PERCHERON_PYTHON to an interpreter that "
      "has the packages of {}",
      folders.how,
      folders.package.empty() ? std::string("tools/percheron_prepare/requirements.txt")
                              : (folders.package / "requirements.txt").string()));
}

Result<ChildProcess> ChildProcess::start(const PythonEnvironment& python,
                                         const std::vector<std::string>& arguments) {
  PERCHERON_ASSIGN_OR_RETURN(Pipe to_child, Pipe::make());
  PERCHERON_ASSIGN_OR_RETURN(Pipe from_child, Pipe::make());
  std::vector<std::string> command = command_of(python, arguments);
  std::vector<std::string> environment = environment_of(python);
  // Not fork(): other threads may hold the allocator's lock, which a forked child would wait for.
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, to_child.read_end(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, from_child.write_end(), STDOUT_FILENO);
  int pid = -1;
  const int error = posix_spawn(&pid, command[0].c_str(), &files, nullptr,
                                pointers_to(command).data(), pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    return not_found(fmt::format("can't run {}: {}", command[0], std::strerror(error)));
  std::signal(SIGPIPE, SIG_IGN);  // A child that ended shows as a failed write, not as our death.
  return ChildProcess(pid, to_child.take_write_end(), from_child.take_read_end());
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
  std::vector<std::string> command = command_of(python, arguments);
  std::vector<std::string> environment = environment_of(python);
  execve(command[0].c_str(), pointers_to(command).data(), pointers_to(environment).data());
  return not_found(fmt::format("can't run {}: {}", command[0], std::strerror(errno)));
}

}  // namespace percheron

#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace percheron {

/// Where the Python programs of data preparation run.
struct PythonEnvironment {
  std::string interpreter;   // $PERCHERON_PYTHON, else what percheron-setup-python made for an
                             // installed program, else .venv/bin/python of the checkout
  std::string package_path;  // folder to add to PYTHONPATH; empty if the package is installed
};

/// kFailedPrecondition says how to make the environment when there is none.
Result<PythonEnvironment> find_python_environment();

/// A child process that talks over pipes, line by line. Ends with the object.
class ChildProcess {
 public:
  static Result<ChildProcess> start(const PythonEnvironment& python,
                                    const std::vector<std::string>& arguments);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  Status write_line(const std::string& line);
  /// kUnavailable if the process has ended.
  Result<std::string> read_line();

 private:
  ChildProcess(int pid, int input, int output) : pid_(pid), input_(input), output_(output) {}

  int pid_ = -1, input_ = -1, output_ = -1;
  std::string pending_;
};

/// Runs the Python module with the caller's terminal, replacing this process; returns only on
/// failure.
Status exec_python(const PythonEnvironment& python, const std::vector<std::string>& arguments);

}  // namespace percheron

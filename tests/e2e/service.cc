#include "tests/e2e/service.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <sstream>
#include <thread>

#include "base/file_system.h"
#include "tests/actors/tiny_run.h"
#include "tests/e2e/program.h"
#include "tests/model/toy_model.h"
#include "tools/run_config.h"

namespace percheron {
namespace {

using Json = nlohmann::json;

constexpr auto kPoll = std::chrono::milliseconds(50);
constexpr int kPollsMax = 20 * 120;  // two minutes

// Calls `there` until it is true.
bool poll(const std::function<bool()>& there) {
  for (int i = 0; i < kPollsMax; ++i) {
    if (there()) return true;
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

std::string read_all(const std::string& path) {
  const Result<std::string> text = system_files().read_text(path);
  return text.ok() ? *text : std::string();
}

// The command line of a process, words parted by blanks; empty when it is gone.
std::string command_of(const std::string& pid) {
  std::string text = read_all("/proc/" + pid + "/cmdline");
  for (char& c : text) c = c == '\0' ? ' ' : c;
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

pid_t parent_of(const std::string& pid) {
  const std::string text = read_all("/proc/" + pid + "/stat");
  const size_t end = text.rfind(')');
  return end == std::string::npos ? 0 : std::stoi(text.substr(text.find(' ', end + 2)));
}

}  // namespace

TestNode::TestNode(const std::string& name, std::vector<std::string> options)
    : name_(name), state_(testing::TempDir() + "node_" + name), options_(std::move(options)) {
  EXPECT_TRUE(system_files().remove_all(state_).ok());
  EXPECT_TRUE(system_files().remove_all(state_ + ".log").ok());
  EXPECT_TRUE(system_files().create_directories(state_).ok());
  start();
}

TestNode::~TestNode() { kill(); }

void TestNode::start() {
  pid_ = fork();
  if (pid_ == 0) {
    const int log = open((state_ + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    std::vector<std::string> words = {PERCHERON_PROGRAM, "node", "--name", name_,
                                      "--state",         state_};
    words.insert(words.end(), options_.begin(), options_.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(3);
  }
  bool answers = false;
  poll([&] {
    answers = run_program("status --json --state " + state_).exit_code == 0;
    return answers || waitpid(pid_, nullptr, WNOHANG) == pid_;
  });
  EXPECT_TRUE(answers) << "the node does not answer: " << log();
}

void TestNode::start(std::vector<std::string> options) {
  options_ = std::move(options);
  start();
}

void TestNode::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void TestNode::stop() {
  ::kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void TestNode::signal(int number) const { ::kill(pid_, number); }

std::string TestNode::log() const { return read_all(state_ + ".log"); }

Json TestNode::ask(const std::string& arguments) const {
  const ProgramResult result = run_program(arguments + " --json --state " + state_);
  EXPECT_EQ(result.exit_code, 0) << arguments << ": " << result.output << log();
  return Json::parse(result.output, nullptr, false);
}

Json TestNode::status(const std::string& run) const {
  const Json all = ask("status " + run);
  return all.is_object() ? all["runs"].at(0) : Json::object();
}

Json TestNode::wait_for(const std::string& run, const std::string& state) const {
  Json last;
  const bool there = poll([&] {
    last = status(run);
    return last["state"] == state || last["state"] == "failed" || last["state"] == "done";
  });
  EXPECT_TRUE(there) << last.dump() << log();
  EXPECT_EQ(last["state"], state) << last.dump()
                                  << read_all(state_ + "/logs/" + run + "/supervisor.log");
  return last;
}

Json TestNode::wait_for_step(const std::string& run, int64_t step) const {
  Json last;
  const bool there = poll([&] {
    last = status(run);
    return last["step"] >= step || last["state"] == "failed";
  });
  EXPECT_TRUE(there && last["state"] != "failed")
      << last.dump() << read_all(state_ + "/logs/" + run + "/supervisor.log");
  return last;
}

void TestNode::wait_until(const std::function<bool()>& there) const {
  EXPECT_TRUE(poll(there)) << log();
}

void TestNode::wait_for_log(const std::string& text) const {
  EXPECT_TRUE(poll([&] { return log().find(text) != std::string::npos; })) << text << log();
}

void TestNode::kill_process(const std::string& what, int signal) const {
  const Result<std::vector<std::string>> processes = system_files().list("/proc");
  ASSERT_TRUE(processes.ok());
  int found = 0;
  for (const std::string& pid : *processes) {
    if (command_of(pid) != "percheron " + what || parent_of(pid) != pid_) continue;
    ::kill(std::stoi(pid), signal);
    ++found;
  }
  EXPECT_EQ(found, 1) << "processes of " << what;
}

proto::Run service_run(const std::string& name, int64_t epochs) {
  proto::Run run = make_tiny_run(name, {.samples = 48, .held_out = 6, .epochs = epochs});
  run.mutable_placement()->clear_targets();
  run.mutable_placement()->clear_trainers();
  run.mutable_placement()->add_targets("cpu:0");
  run.mutable_placement()->add_trainers("cpu:1");
  run.mutable_placement()->set_threads(1);
  run.mutable_checkpoint()->set_every_steps(20);
  return run;
}

proto::Run lasting_run(const TestNode& node, const std::string& name, double seconds) {
  constexpr int64_t kEpochs = 4;
  const proto::Run tried = service_run(name + "_tried", kEpochs);
  submit(node, tried, name + "_tried");
  node.wait_for(name + "_tried", "done");
  std::vector<double> times;  // of steps
  std::istringstream lines(read_all(join_path(tried.output().directory(), "metrics.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    const Json entry = Json::parse(line, nullptr, false);
    if (entry.is_object() && entry["kind"] == "step") times.push_back(entry["time"]);
  }
  std::vector<double> took;
  for (size_t i = 1; i < times.size(); ++i) took.push_back(times[i] - times[i - 1]);
  EXPECT_FALSE(took.empty());
  if (took.empty()) return service_run(name);
  // The machine may have other work now, and none later: the fast steps count.
  const auto fast = took.begin() + static_cast<std::ptrdiff_t>(took.size() / 4);
  std::nth_element(took.begin(), fast, took.end());
  const double epoch_seconds = *fast * static_cast<double>(times.size()) / kEpochs;
  return service_run(name, 1 + static_cast<int64_t>(seconds / std::max(epoch_seconds, 1e-3)));
}

std::string submit(const TestNode& node, const proto::Run& run, const std::string& name) {
  const std::string path = testing::TempDir() + name + ".yaml";
  write_file(path, run_config_yaml(run));
  return node.ask("submit -c " + path + " --name " + name)["run"].get<std::string>();
}

std::vector<std::string> member(const std::string& secret, int join) {
  std::vector<std::string> options = {"--insecure", "--secret", secret, "--listen", "127.0.0.1:0"};
  if (join != 0) options.insert(options.end(), {"--join", "127.0.0.1:" + std::to_string(join)});
  return options;
}

int port_of(const TestNode& node) {
  const std::string last = " is ready at 127.0.0.1:";
  node.wait_for_log(last);
  const std::string log = node.log();
  const size_t at = log.rfind(last);
  return at == std::string::npos ? 0 : std::stoi(log.substr(at + last.size()));
}

void submit_when_known(const TestNode& node, const proto::Run& run, const std::string& name) {
  const std::string path = testing::TempDir() + name + ".yaml";
  write_file(path, run_config_yaml(run));
  ProgramResult result;
  const bool submitted = poll([&] {
    result = run_program("submit --name " + name + " -c " + path + " --state " + node.state());
    return result.exit_code == 0;
  });
  EXPECT_TRUE(submitted) << result.output << node.log();
}

std::string undisturbed(proto::Run run) {
  run.mutable_output()->set_directory(run.output().directory() + "_undisturbed");
  EXPECT_TRUE(system_files().remove_all(run.output().directory()).ok());
  RecordingObserver observer;
  const Result<RunSummary> summary = train_tiny(run, observer);
  EXPECT_TRUE(summary.ok()) << summary.status().message();
  return latest_masters(run);
}

}  // namespace percheron

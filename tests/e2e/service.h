#pragma once

#include <sys/types.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "proto/run.pb.h"

namespace percheron {

/// A `percheron node` of its own, which dies with the object.
class TestNode {
 public:
  /// Starts it with a fresh state directory below the test's and waits until it answers.
  explicit TestNode(const std::string& name, std::vector<std::string> options = {});
  ~TestNode();

  /// What the program says to `arguments` about this node, as JSON.
  nlohmann::json ask(const std::string& arguments) const;
  /// The run's entry in `percheron status`.
  nlohmann::json status(const std::string& run) const;
  /// Waits until `percheron status` says so; fails the test after a limit, or when the run ends in
  /// another state.
  nlohmann::json wait_for(const std::string& run, const std::string& state) const;
  nlohmann::json wait_for_step(const std::string& run, int64_t step) const;
  /// Waits until `there` is true; fails the test after a limit.
  void wait_until(const std::function<bool()>& there) const;
  /// Waits until the daemon has said `text`.
  void wait_for_log(const std::string& text) const;

  /// Kills the process of `what`: "supervisor RUN" or "worker RUN/cpu:0".
  void kill_process(const std::string& what, int signal) const;
  void kill();
  /// Asks it to end, and waits for that.
  void stop();
  /// To the daemon itself.
  void signal(int number) const;
  /// Again, with the state that it left.
  void start();
  /// Likewise, with other options.
  void start(std::vector<std::string> options);
  const std::string& state() const { return state_; }
  pid_t pid() const { return pid_; }
  std::string log() const;

 private:
  const std::string name_, state_;
  std::vector<std::string> options_;
  pid_t pid_ = -1;
};

/// A run with one target and one trainer in processes of their own, so that its bits are the same
/// whatever happens meanwhile.
proto::Run service_run(const std::string& name, int64_t epochs = 20);

/// Likewise, of so many epochs that it goes on for about `seconds` where nothing disturbs it,
/// however fast this machine is: `node` trains a few to find out.
proto::Run lasting_run(const TestNode& node, const std::string& name, double seconds);

/// The id of the run, submitted to `node` by its program.
std::string submit(const TestNode& node, const proto::Run& run, const std::string& name);

/// The options of a node of a cluster without TLS, as tests may have it; `join` is the port of
/// another one.
std::vector<std::string> member(const std::string& secret, int join = 0);
/// Of a member.
int port_of(const TestNode& node);
/// Submits once all nodes that the run names know each other.
void submit_when_known(const TestNode& node, const proto::Run& run, const std::string& name);

/// The parameters that `percheron train` ends with for the same run.
std::string undisturbed(proto::Run run);

}  // namespace percheron

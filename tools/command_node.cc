#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/node/device_book.h"
#include "actors/node/node_daemon.h"
#include "actors/node/operator_channel.h"
#include "actors/node/peer_network.h"
#include "actors/node/process_output.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/log.h"
#include "data/directory_lock.h"
#include "data/transport/file_descriptor.h"
#include "data/transport/random_bytes.h"
#include "data/transport/ucx_carrier.h"
#include "data/transport/unix_listener.h"
#include "tools/cluster_access.h"
#include "tools/commands.h"
#include "tools/node_client.h"
#include "tools/node_metrics_page.h"
#include "tools/number_options.h"
#include "tools/printer.h"
#include "tools/stop_signals.h"

namespace percheron {
namespace {

constexpr uint64_t kFilesMin = 8192;     // open at once
constexpr double kShutDownSeconds = 60;  // that runs get to write a checkpoint

struct NodeArguments {
  std::string name;
  std::string state = default_state_directory();
  std::string listen = "127.0.0.1:0", advertise;
  std::vector<std::string> join;
  std::string metrics;  // address; empty: not served
  std::string log, log_bytes = "64MiB";
  int log_files = LogLimits().files_max;
  RetentionLimits retention;
  ClusterAccess access;
  std::string bulk_ucx;  // devices; empty: features go over TCP
  bool trusted_network = false;
};

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == 0) return "localhost";
  return name;
}

/// The same for as long as the state directory is.
Result<std::string> node_uuid(FileSystem& files, const std::string& state) {
  const std::string path = join_path(state, "node_uuid");
  if (files.exists(path)) {
    PERCHERON_ASSIGN_OR_RETURN(const std::string text, files.read_text(path));
    const std::string uuid = text.substr(0, text.find('\n'));
    if (is_uuid(uuid)) return uuid;
    return failed_precondition(path + " holds no UUID: remove it to make this a new node");
  }
  const std::string uuid = make_uuid(system_random_bytes());
  PERCHERON_RETURN_IF_ERROR(write_text_atomically(files, path, uuid + "\n"));
  return uuid;
}

/// As NodeAddress::parse(), and port 0 is one that is free.
Result<NodeAddress> parse_listen(const std::string& text) {
  constexpr std::string_view kFree = ":0";
  if (!text.ends_with(kFree)) return NodeAddress::parse(text);
  PERCHERON_ASSIGN_OR_RETURN(NodeAddress address,
                             NodeAddress::parse(text.substr(0, text.size() - 1) + "1"));
  address.port = 0;
  return address;
}

/// Null where the node is alone: nothing of a cluster was asked for.
Result<std::unique_ptr<PeerNetwork>> join_cluster(const NodeArguments& arguments,
                                                  NodeDaemon& daemon, FileSystem& files) {
  if (!arguments.bulk_ucx.empty() && !arguments.trusted_network) {
    return invalid_argument(
        "--bulk-ucx: UCX neither encrypts features nor keeps strangers from its ports. Name "
        "devices of a network that nobody else reaches, and say so by --trusted-network");
  }
  if (!arguments.access.given()) {
    const bool alone = arguments.join.empty() && arguments.listen == NodeArguments().listen;
    if (alone && arguments.bulk_ucx.empty()) return {nullptr};
    return invalid_argument(
        "--listen, --join and --bulk-ucx need --certs DIR (see `percheron certs`), or --insecure "
        "with "
        "--secret");
  }
  PERCHERON_ASSIGN_OR_RETURN(Credentials credentials,
                             arguments.access.credentials(files, system_clock(), daemon.name()));
  PERCHERON_ASSIGN_OR_RETURN(credentials.self.node_uuid, node_uuid(files, arguments.state));
  std::shared_ptr<UcxCarrier> ucx;
  if (!arguments.bulk_ucx.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(ucx, UcxCarrier::open(arguments.bulk_ucx));
  }
  PeerOptions options{{}, {}, std::move(credentials)};
  options.ucx = std::move(ucx);
  PERCHERON_ASSIGN_OR_RETURN(const NodeAddress bind, parse_listen(arguments.listen));
  options.listener.bind_host = bind.host;
  options.listener.port = bind.port;
  options.listener.advertised_host = arguments.advertise;
  for (const std::string& text : arguments.join) {
    PERCHERON_ASSIGN_OR_RETURN(const NodeAddress seed, NodeAddress::parse(text));
    options.seeds.push_back(seed);
  }
  return PeerNetwork::start(std::move(options), daemon, system_random_bytes(), system_clock());
}

Status run_node(const NodeArguments& arguments) {
  FileSystem& files = system_files();
  Printer out(stdout);
  NodeOptions options;
  PERCHERON_ASSIGN_OR_RETURN(options.logs.bytes_max,
                             byte_count("--log-bytes", arguments.log_bytes));
  PERCHERON_RETURN_IF_ERROR(files.create_directories(arguments.state));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock,
                             lock_directory(files, arguments.state, "--state"));
  options.name = arguments.name.empty() ? host_name() : arguments.name;
  options.state_directory = arguments.state;
  options.program = "/proc/self/exe";
  options.logs.files_max = arguments.log_files;
  options.retention = arguments.retention;
  if (!arguments.log.empty()) {
    options.own_log = std::filesystem::absolute(arguments.log).string();
    PERCHERON_RETURN_IF_ERROR(append_output_to(options.own_log));
  }
  std::unique_ptr<NodeMetricsPage> metrics;
  if (!arguments.metrics.empty()) {
    PERCHERON_ASSIGN_OR_RETURN(metrics, NodeMetricsPage::start(arguments.metrics));
    out.write(metrics->text() + "\n");
  }
  const DeviceBook devices(options.program);
  const CatchStopSignals catching;
  PERCHERON_ASSIGN_OR_RETURN(const uint64_t files_max, raise_descriptor_limit());
  if (files_max < kFilesMin) {
    log_warning(
        "this process may have {} files open, and each micro-batch whose features wait is one: "
        "raise the limit (ulimit -Hn, LimitNOFILE of systemd) to {} at least",
        files_max, kFilesMin);
  }
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<NodeDaemon> daemon,
                             NodeDaemon::start(options, files, system_clock()));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<PeerNetwork> peers,
                             join_cluster(arguments, *daemon, files));
  PERCHERON_ASSIGN_OR_RETURN(
      const std::unique_ptr<UnixListener> operators,
      UnixListener::start(operator_socket(arguments.state),
                          [&](FrameChannel& channel) { serve_operator(*daemon, channel); }));
  // Nothing fails from here on: they are taken back at the end, before they are no more.
  daemon->set_peers(peers.get());
  daemon->set_devices(&devices);
  if (metrics) metrics->show(daemon.get(), peers.get());
  out.print("node {} is ready{}: state in {}\n", options.name,
            peers ? " at " + peers->address().text() : "", arguments.state);
  std::fflush(stdout);
  while (stop_signal_count() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  out.print("node {} ends: its runs write a checkpoint and go on when it is started again\n",
            options.name);
  daemon->shut_down(kShutDownSeconds);
  if (metrics) metrics->show(nullptr, nullptr);
  operators->stop();
  daemon->set_peers(nullptr);
  daemon->set_devices(nullptr);
  return ok_status();
}

}  // namespace

void add_node_command(CLI::App& app, Command& chosen) {
  auto arguments = std::make_shared<NodeArguments>();
  CLI::App* command = app.add_subcommand(
      "node", "Serve this machine's devices: the daemon that runs what is submitted");
  command->add_option("--name", arguments->name,
                      "This node in placement, as NAME/cuda:0; default: the host's name");
  command->add_option("--state", arguments->state,
                      "Directory of runs, logs and the operators' socket; default: "
                      "$PERCHERON_STATE, else " +
                          default_state_directory());
  command->add_option("--listen", arguments->listen,
                      "Address and port for other nodes and operators; default: 127.0.0.1 and a "
                      "free port, where --certs or --insecure is given");
  command->add_option("--advertise", arguments->advertise,
                      "The host by which others reach this node; default: that of --listen");
  command->add_option("--join", arguments->join,
                      "HOST:PORT of any node of the cluster; may be repeated");
  command->add_option("--metrics", arguments->metrics,
                      "Serve /metrics for Prometheus, /healthz and /readyz over HTTP: PORT, for "
                      "this machine alone, or ADDRESS:PORT; port 0 takes a free one and says "
                      "which. Default: not served (docs/monitoring.md)");
  command->add_option("--log", arguments->log,
                      "File to append the daemon's own words to; default: its standard output and "
                      "error");
  command->add_option("--log-bytes", arguments->log_bytes,
                      "Size at which a log file, of a process or of --log, is set aside and a new "
                      "one begun; default: 64MiB");
  command
      ->add_option("--log-files", arguments->log_files,
                   "Log files that are kept of each process, the current one included; default: 3")
      ->check(in_range(2, 1000));
  command
      ->add_option("--keep-runs", arguments->retention.runs_max,
                   "Runs that are over whose records and logs are kept, the newest; 0: all; "
                   "default: 200. Checkpoints and other output always stay")
      ->check(at_least(0));
  command
      ->add_option("--keep-days", arguments->retention.days_max,
                   "Days for which they are kept; 0: for ever; default: 90")
      ->check(at_least(0));
  arguments->access.add_options(command);
  CLI::Option* ucx = command->add_option(
      "--bulk-ucx", arguments->bulk_ucx,
      "Devices, as UCX_NET_DEVICES names them (eth0, mlx5_0:1), over which features "
      "come from and go to nodes that have UCX too; needs --trusted-network. "
      "Default: all go over TCP (docs/transport.md)");
  command
      ->add_flag("--trusted-network", arguments->trusted_network,
                 "The devices of --bulk-ucx are on a network that nobody else reaches")
      ->needs(ucx);
  command->footer(
      "SIGTERM ends it: runs write a checkpoint and go on when a node with the same state is "
      "started again.");
  command->callback(
      [arguments, &chosen] { chosen = [arguments] { return run_node(*arguments); }; });
}

}  // namespace percheron

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "actors/node/device_book.h"
#include "actors/node/device_claims.h"
#include "actors/node/feature_puller.h"
#include "actors/node/feature_regions.h"
#include "actors/node/linked_process.h"
#include "actors/node/process_logs.h"
#include "actors/node/run_book.h"
#include "actors/node/run_cleanup.h"
#include "actors/node/successor.h"
#include "actors/policy/restart_history.h"
#include "actors/policy/silence_watch.h"
#include "actors/service/frame_link.h"
#include "actors/service/placement_change.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "data/transport/region_pool.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"

namespace percheron {

/// Into what operators are told of a node.
void add_device(const proto::DeviceState& device, proto::NodeRecord& record);

struct NodeOptions {
  std::string name;                // in the cluster; placement spells devices "NAME/cpu:0"
  std::string state_directory;     // runs, logs
  std::string program;             // the percheron executable, which is started for each process
  RestartLimits restarts;          // of a run's supervisor
  double silence_seconds = 3;      // after which a process of a run is taken for hung
  double first_sign_seconds = 30;  // that it gets to start
  LogLimits logs;
  RetentionLimits retention;
  std::string own_log;  // the file that this process's output goes to, if it is to rotate too
};

/// Passes frames on to other nodes.
class PeerLinks {
 public:
  virtual ~PeerLinks() = default;
  /// kUnavailable when the node is not connected now: then `frame` is as it was.
  virtual Status send(const std::string& node, proto::Frame&& frame) = 0;
  /// Brings the features of another node into memory of this one. Blocks, until it is cancelled at
  /// the latest; `cancellation` may be null.
  virtual Result<BulkRegions::Region> pull(const std::string& run, const proto::FeatureKey& key,
                                           PullCancellation* cancellation) = 0;
  /// Of the memory that pull() uses.
  virtual RegionPoolCounts pull_counts() = 0;
  virtual std::vector<proto::NodeRecord> nodes() = 0;
  /// The runs that other nodes have accepted.
  virtual std::vector<proto::RunRecord> runs() = 0;
  struct LostNode {
    std::string name;
    double seconds = 0;                  // since it was heard last
    std::vector<proto::RunRecord> runs;  // as it said then
  };
  /// Nodes that can't be reached any more.
  virtual std::vector<LostNode> lost() = 0;
  /// What another node answers an operator.
  virtual Result<proto::ControlReply> ask(const std::string& node,
                                          const proto::ControlRequest& request,
                                          std::chrono::milliseconds timeout) = 0;
};

/// The daemon of one machine: starts and ends the processes of runs, passes frames between them and
/// to other nodes, keeps features, remembers the runs that it accepted. Thread-safe: every
/// connection has a thread of its own, and none waits while it holds the mutex.
class NodeDaemon {
 public:
  /// Goes on with runs that were under way when the daemon ended. Everything is borrowed.
  static Result<std::unique_ptr<NodeDaemon>> start(NodeOptions options, FileSystem& files,
                                                   const Clock& clock);
  /// shut_down()
  ~NodeDaemon();

  /// What an operator asks. An order to a run waits for its answer, for `timeout` at most.
  proto::ControlReply answer(const proto::ControlRequest& request,
                             std::chrono::milliseconds timeout);
  /// A frame from another node, or for one of this.
  void route(proto::Frame frame, FileDescriptor fd = {});
  /// A frame for another node did not get there.
  void undeliverable(const proto::Frame& frame, const Status& why);
  /// Another node can no longer be reached: what of it took part in runs of this one is lost.
  void node_lost(const std::string& node);
  /// Runs are stopped after a checkpoint and go on when the daemon is started again; ends all
  /// processes, after `seconds` by force.
  void shut_down(double seconds);

  void set_peers(PeerLinks* peers) { peers_ = peers; }
  /// Borrowed; null: nothing is known of this machine's devices.
  void set_devices(const DeviceBook* devices) { devices_ = devices; }
  const FeatureRegions& features() const { return features_; }
  const std::string& name() const { return options_.name; }
  /// The runs that this node has accepted.
  std::vector<proto::RunRecord> own_runs();
  /// Whether this node takes no workers any more.
  bool drained() const { return drained_; }
  /// Devices of this node that runs have now.
  std::map<std::string, std::string> device_owners();
  /// Those and the others of this machine.
  std::vector<proto::DeviceState> devices();
  const ProcessLogs& logs() const { return logs_; }
  const RunCleanup& cleanup() const { return cleanup_; }

 private:
  /// A process of a run.
  struct Child {
    proto::Endpoint endpoint;
    proto::StartWorker worker;      // of a worker
    std::vector<DeviceId> devices;  // likewise
    std::string log;
    std::unique_ptr<FrameLink> link;
    std::unique_ptr<LinkedProcess> process;
    std::unique_ptr<FeaturePuller> puller;  // of a worker
    std::thread reader;
    bool heard_out = false;  // nothing more comes from it
    bool ended = false;      // reaped; to be destroyed by tick()
    bool unwanted = false;   // was told to end
    bool tell_end = false;   // its end is told all the same
    double kill_at = 0;      // when it is ended by force; 0 = not
    double started = 0;      // when
    std::string killed_for;  // why it was ended by force
  };
  using ChildPtr = std::shared_ptr<Child>;
  /// The supervisor of a run, of which each node has one in a generation.
  struct Leader {
    std::string node;
    int64_t generation = 0;
  };
  /// The supervisors that a run has had here, one after the other.
  struct Supervision {
    RestartHistory restarts;
    int64_t step = 0;  // the highest that they told of
  };
  struct Order {
    bool answered = false;
    proto::RunOrderReply reply;
  };

  NodeDaemon(NodeOptions options, FileSystem& files, const Clock& clock, RunBook book);

  // Of processes. The caller of those with "locked" holds the mutex.
  static std::string key_of(const proto::Endpoint& endpoint);
  Status start_child_locked(const proto::Endpoint& endpoint, proto::Frame first,
                            const std::string& verb, const std::string& log,
                            const proto::StartWorker& worker);
  void end_child_locked(Child& child);
  void end_run_locked(const std::string& run, const std::string& supervisor_node);
  void read_from(const ChildPtr& child);
  void child_ended(const ChildPtr& child, bool well, const std::string& how);
  Status spawn_worker(const proto::StartWorker& worker);

  // Of processes that live and do not answer, in node_liveness.cc.
  void alive(const Child& child);
  void kill_locked(Child& child, const std::string& why);
  void end_silent_locked();
  /// Workers of other nodes' runs that are over: the word of that may have been lost.
  void end_orphans_locked();
  void kill_worker(const std::string& run, const proto::KillWorker& order);

  // Of frames.
  void take(const proto::Frame& frame);

  // Of features, in node_features.cc.
  /// Deals with a frame about features of a worker of this node; false for any other.
  bool take_features(const Child& worker, const proto::Frame& frame, FileDescriptor& fd);
  /// From this node at once; from another one where the worker's reader does not wait for it.
  void fetch(const Child& worker, const proto::FetchFeatures& fetch);
  void send_features(const Child& worker, const proto::FetchFeatures& fetch,
                     PullCancellation* cancellation);
  /// Tells workers which of their regions are free again.
  void tell_freed();

  // Of runs, in node_runs.cc.
  Status start_supervisor_locked(proto::RunRecord& record);
  void supervisor_ended_locked(const ChildPtr& child, bool well, const std::string& how);
  Supervision& supervision_locked(const std::string& run);
  /// Those whose supervisor has waited long enough to be started again.
  void queue_recovering_locked();
  void start_queued_locked();
  void take_report_locked(const std::string& run, const proto::RunReport& report);
  std::set<std::string> devices_locked(const proto::RunRecord& record);
  std::map<std::string, std::string> device_owners_locked();
  std::map<std::string, std::string> taken_devices_locked();

  // Of operators, in node_operator.cc.
  Result<std::string> submit(const proto::SubmitRun& submit);
  /// Where the run of a request lives: another node, or empty.
  std::string node_of(const std::string& run);
  proto::ControlReply answer_here(const proto::ControlRequest& request,
                                  std::chrono::milliseconds timeout);
  Status list(const proto::ListRuns& list, proto::ControlReply& reply);
  Status order(const proto::OrderRun& order, std::chrono::milliseconds timeout,
               proto::ControlReply& reply);
  /// Gives a run's supervisor an order and waits for the answer; none if it ends without one.
  /// kUnavailable after `timeout`, which says what follows all the same: `standing`. Lets go of
  /// the lock meanwhile.
  Result<std::optional<proto::RunOrderReply>> ask_supervisor(std::unique_lock<std::mutex>& lock,
                                                             const std::string& run,
                                                             proto::Frame frame,
                                                             std::chrono::milliseconds timeout,
                                                             const std::string& standing);
  /// A run that is ending because of an earlier order is to go on after that.
  Status resume_after_its_end(std::unique_lock<std::mutex>& lock, const std::string& run,
                              std::chrono::milliseconds timeout, proto::ControlReply& reply);
  bool has_supervisor_locked(const std::string& run);
  std::vector<std::string> known_nodes();
  /// kNotFound for a node that this cluster does not have, kFailedPrecondition for a drained one.
  Status check_nodes(const std::vector<std::string>& nodes);
  Status order_idle_run_locked(proto::RunRecord& record, const proto::RunOrder& order,
                               proto::ControlReply& reply);
  Status read_log(const proto::ReadLog& read, proto::ControlReply& reply);

  // Of devices that come and go, in node_scale.cc.
  Status scale(const proto::OrderScale& order, std::chrono::milliseconds timeout,
               proto::ControlReply& reply);
  Status scale_idle_run_locked(proto::RunRecord& record, const PlacementChange& change);
  Status check_change(const std::string& run, const PlacementChange& change);
  /// Its answer, or the one of its record where it has no supervisor.
  Status ask_for_change(const proto::OrderScale& order, const PlacementChange& change,
                        std::chrono::milliseconds timeout, proto::ControlReply& reply);
  /// Keeps others off what an order adds until release_reserved(); all or nothing.
  Status reserve(const std::string& run, const PlacementChange& change);
  void release_reserved(const std::string& run, const PlacementChange& change);
  /// On another node, or this one.
  Status reserve_on(const std::string& node, const proto::ReserveDevices& order);
  Status reserve_here(const proto::ReserveDevices& order);
  /// The run that has a device, by "node/cpu:0", as far as this node knows.
  std::map<std::string, std::string> owners_in_cluster();
  void take_placement_locked(const std::string& run, const proto::RunPlacement& placement);
  void end_worker(const proto::Frame& frame);

  // Of runs that several nodes call the same, in node_names.cc.
  /// The ids of runs that other nodes have accepted.
  std::set<std::string> names_elsewhere();
  /// A run that was submitted after another node's of the same id gets another one.
  void rename_twins_locked();
  void begin_rename_locked(proto::RunRecord& record);
  void finish_rename_locked(const std::string& run);

  // Of nodes that are to be left alone, in node_drain.cc. Results say what became of a run.
  Status drain(const proto::DrainNode& order, std::chrono::milliseconds timeout,
               proto::ControlReply& reply);
  /// Those that other nodes have now.
  std::vector<proto::RunRecord> runs_of_others();
  /// Runs of other nodes that have something here, with the nodes of their supervisors.
  std::map<std::string, std::string> guests();
  /// Asks such a node, again while it is not known here yet.
  Result<proto::ControlReply> ask_host(const std::string& node,
                                       const proto::ControlRequest& request,
                                       std::chrono::milliseconds timeout);
  Result<std::string> leave(const std::string& run, const std::string& node,
                            std::chrono::milliseconds timeout);
  /// A run of this node leaves it, with its supervisor.
  Result<std::string> move_away(const std::string& run, std::chrono::milliseconds timeout);
  Status adopt(const proto::RunRecord& record);
  /// Ends a run's processes after a checkpoint; it is queued then, because of `why`.
  Status rest(std::unique_lock<std::mutex>& lock, const std::string& run, const std::string& why,
              std::chrono::milliseconds timeout);
  /// The node that is to have a run with this placement; empty where it has to wait.
  std::string successor_of(const ClusterPlacement& placement);
  std::set<std::string> drained_nodes();
  std::string drained_path() const;

  // Of runs whose node is lost, in node_succession.cc.
  /// Starts successors; by tick() alone.
  void take_over_orphans();
  /// This node and those that can be reached.
  std::set<std::string> nodes_there();
  /// What is said of runs that lost nodes had.
  std::vector<proto::RunRecord> runs_of_peers();
  /// Runs that other nodes have by now, as they say.
  void forget_moved_locked();
  void forget_moved_locked(const std::string& run, const std::string& node);
  /// The worker's supervisor leads its run here from now on; kFailedPrecondition when a later one
  /// does.
  Status heed_locked(const proto::StartWorker& worker);
  /// Whether a frame is of no supervisor whose run another one leads by now.
  bool is_heeded(const proto::Frame& frame);

  // Of files; by tick() alone.
  void look_after_files();
  bool rotate_logs();  // false: something failed, and was said
  void forget_runs();

  void tick();
  /// A node of these devices that can't be reached now, and why the run waits for it; empty when
  /// it does not.
  std::string unreachable_node_locked(const proto::RunRecord& record,
                                      const std::set<std::string>& devices);
  PeerLinks* peers() const { return peers_.load(); }
  double now() const { return static_cast<double>(clock_.monotonic_ns()) * 1e-9; }

  const NodeOptions options_;
  FileSystem& files_;
  const Clock& clock_;
  std::atomic<PeerLinks*> peers_{nullptr};
  std::atomic<const DeviceBook*> devices_{nullptr};
  std::atomic<bool> drained_{false};
  FeatureRegions features_;
  ProcessLogs logs_;
  double rotate_at_ = 0, forget_at_ = 0;  // of tick() alone

  std::mutex mutex_;
  std::condition_variable changed_;
  RunBook book_;
  RunCleanup cleanup_;
  std::map<std::string, ChildPtr> children_;  // by key_of() their endpoint
  DeviceClaims claims_;
  std::vector<ChildPtr> gone_;                        // to be destroyed by tick()
  SilenceWatch silence_;                              // of children_, by process number
  SuccessorWatch succession_;                         // of tick() alone
  std::set<std::string> not_taken_over_;              // likewise: runs of which that was said
  std::set<std::string> not_renamed_;                 // likewise
  std::map<std::string, Leader> led_by_;              // runs that have workers here
  std::map<uint64_t, Order> orders_;                  // that wait for a run's answer
  std::map<std::string, Supervision> supervisions_;   // of runs that are not over
  std::map<std::string, double> restart_at_;          // of supervisors that are to come back
  std::map<std::string, double> undeliverable_said_;  // of nodes, when
  uint64_t next_order_ = 1;
  bool shutting_down_ = false;
  std::thread ticker_;  // last: it uses the others
};

}  // namespace percheron

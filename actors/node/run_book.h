#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "proto/cluster.pb.h"

namespace percheron {

/// Whether nothing more will happen in this state by itself.
bool run_is_over(proto::RunReport::State state);
/// "running", as people read it.
std::string state_name(proto::RunReport::State state);

/// The runs that a node has accepted, on disk as `directory`/ID.run, so that they survive the
/// daemon. Not thread-safe.
class RunBook {
 public:
  /// Reads what is there. A file that can't be read is said, and left alone.
  static Result<RunBook> open(FileSystem& files, const Clock& clock, const std::string& directory);

  /// A new record; its id is `name`, with a number where it is one of `elsewhere` or here.
  /// kInvalidArgument for a name that can't be a file's.
  Result<proto::RunRecord*> add(const std::string& name, const std::string& node,
                                const proto::Run& config,
                                const std::set<std::string>& elsewhere = {});
  /// `name`, or that with the lowest number that makes it an id which is neither here nor there.
  std::string free_id(const std::string& name, const std::set<std::string>& elsewhere) const;
  /// One that another node had, or in place of the one of the same id.
  Status put(const proto::RunRecord& record);
  /// Null when there is none.
  proto::RunRecord* find(const std::string& id);
  /// All, by the time of their submission.
  std::vector<proto::RunRecord*> all();
  /// Writes a record to disk: after every change of its state.
  Status save(const proto::RunRecord& record);
  /// Forgets a record, on disk too; ok where there is none.
  Status remove(const std::string& id);

 private:
  RunBook(FileSystem& files, const Clock& clock, std::string directory)
      : files_(&files), clock_(&clock), directory_(std::move(directory)) {}
  std::string path_of(const std::string& id) const;

  FileSystem* files_;
  const Clock* clock_;
  std::string directory_;
  std::map<std::string, proto::RunRecord> records_;
};

}  // namespace percheron

#pragma once

#include <functional>
#include <string>

#include "actors/observer.h"
#include "base/file_system.h"
#include "proto/run.pb.h"

namespace percheron {

/// Measures the best checkpoint of a finished run on its held-out conversations by the real
/// draft-verify loop, beside the target alone, prompt lookup and the untrained drafter, and writes
/// report.json and report.html into the output directory (docs/formats.md). Loads the target anew
/// on the run's first target device. `say` is told what is being done.
Status report_run(const proto::Run& run, const RunSummary& summary, FileSystem& files,
                  const std::function<void(const std::string&)>& say);

}  // namespace percheron

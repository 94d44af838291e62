#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/observer.h"
#include "actors/run_setup.h"
#include "base/file_system.h"
#include "base/status.h"
#include "tools/engine.h"

namespace percheron {

/// Measures the best checkpoint of a finished run on its held-out conversations by the real
/// draft-verify loop, beside the target alone, prompt lookup and the untrained drafter, and writes
/// report.json and report.html into the output directory (docs/formats.md). Returns the path of
/// report.html; empty when there was nothing to measure (`say` has been told why). Loads the target
/// anew on the run's first target device. `say` is told what is being done.
Result<std::string> report_run(const std::shared_ptr<const RunSetup>& setup,
                               const RunSummary& summary, FileSystem& files,
                               const std::function<void(const std::string&)>& say);

/// Where and in which numbers the report computes: as the run's first target and its drafter do.
EngineOptions report_engine_options(const RunSetup& setup);

}  // namespace percheron

#pragma once

#include "actors/observer.h"
#include "actors/policy/run_activity.h"
#include "proto/control.pb.h"

namespace percheron {

/// Of a report's steals by thief and victim only the largest are told, and no more homes than this,
/// so that a report stays far below what a frame holds.
inline constexpr int kReportedSteals = 64, kReportedHomes = 1024;

/// Writes what a step's end says of a run into its report.
void add_step(const StepReport& step, proto::RunReport& report);

/// Writes what the actors of a run do into its report: the run's queues, and each actor's time for
/// the workers that the report names.
void add_activity(const RunActivitySnapshot& seen, proto::RunReport& report);

}  // namespace percheron

#pragma once

#include <string>
#include <vector>

#include "actors/run_setup.h"

namespace percheron {

/// What a person should know of the settings that were given, one line each: those that this run
/// does not read, because they belong to the other kind of drafter, loss, optimizer or schedule,
/// and those that the end of the run forestalls.
std::vector<std::string> setting_notes(const RunSetup& setup);

}  // namespace percheron

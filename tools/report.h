#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "tools/metrics_history.h"

namespace percheron {

/// One piece of a decoded answer and who brought it.
struct ShownPiece {
  enum class Origin {
    kTarget,
    kAccepted
  };  // the target's own token (prefill or bonus), or an accepted draft
  std::string text;
  Origin origin = Origin::kTarget;
};

/// A prompt with its answer as the draft-verify loop produced it.
struct ShownPrompt {
  std::string question;
  std::vector<ShownPiece> answer;
  double acceptance_length = 1;
};

/// Everything that report.html shows; `figures` is what report.json holds (docs/formats.md).
struct ReportData {
  std::string title;
  nlohmann::ordered_json figures;
  std::string config_yaml;
  std::vector<ShownPrompt> prompts;
};

/// A page in one file, without scripts and without anything from the network.
std::string report_html(const ReportData& data, const MetricsHistory& history);

/// Writes report.json and report.html into `directory`, each atomically.
Status write_report(FileSystem& files, const std::string& directory, const ReportData& data,
                    const MetricsHistory& history);

}  // namespace percheron

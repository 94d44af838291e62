#pragma once

#include <memory>
#include <string>

#include "actors/health_watch.h"
#include "actors/metrics_server.h"
#include "actors/run_metrics.h"
#include "actors/run_setup.h"
#include "base/clock.h"

namespace percheron {

/// A run's metrics and the server that shows them, for `percheron train --metrics`.
class RunMetricsPage {
 public:
  /// `address` as parse_metrics_address() reads it. Errors as MetricsServer::start().
  static Result<std::unique_ptr<RunMetricsPage>> start(const std::string& address,
                                                       const RunSetup& setup, const Clock& clock);

  /// Where it is, and a warning when others can read it.
  std::string text() const;
  const std::shared_ptr<RunMetrics>& metrics() const { return metrics_; }
  const std::shared_ptr<RunActivity>& activity() const { return activity_; }

 private:
  RunMetricsPage() = default;

  bool loopback_ = true;
  std::shared_ptr<RunActivity> activity_;
  std::shared_ptr<RunMetrics> metrics_;
  std::unique_ptr<HealthWatch> health_;    // null without a GPU
  std::unique_ptr<MetricsServer> server_;  // last: it asks the others
};

/// The last name of the output directory: what tells runs apart in metrics.
std::string run_label(const std::string& output);

}  // namespace percheron

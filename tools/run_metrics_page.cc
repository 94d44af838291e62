#include "tools/run_metrics_page.h"

#include <google/protobuf/util/json_util.h>

#include <set>
#include <utility>
#include <vector>

#include "actors/run_record.h"
#include "base/log.h"
#include "tools/build_info.h"

namespace percheron {

std::string run_label(const std::string& output) {
  const size_t end = output.find_last_not_of('/');
  if (end == std::string::npos) return "/";
  const size_t slash = output.rfind('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return output.substr(begin, end + 1 - begin);
}

namespace {

// Null where the run has no GPU, or its driver tells nothing: the run needs neither.
std::unique_ptr<HealthWatch> watch_gpus(const RunSetup& setup,
                                        const std::shared_ptr<RunActivity>& activity) {
  std::set<std::string> devices;
  for (const auto* list : {&setup.placement.targets, &setup.placement.trainers}) {
    for (const DeviceId id : *list) {
      if (id.kind == DeviceKind::kCuda) devices.insert(to_string(id));
    }
  }
  if (devices.empty()) return nullptr;
  Result<std::unique_ptr<CardReader>> reader = CardReader::open();
  if (!reader.ok()) {
    log_warning("no power and load of GPUs: {}", reader.status().message());
    return nullptr;
  }
  return std::make_unique<HealthWatch>(activity, std::move(reader).value(),
                                       std::vector<std::string>(devices.begin(), devices.end()));
}

}  // namespace

Result<std::unique_ptr<RunMetricsPage>> RunMetricsPage::start(const std::string& address,
                                                              const RunSetup& setup,
                                                              const Clock& clock) {
  PERCHERON_ASSIGN_OR_RETURN(const MetricsAddress parsed, parse_metrics_address(address));
  std::unique_ptr<RunMetricsPage> result(new RunMetricsPage());
  result->loopback_ = parsed.loopback();
  result->activity_ = std::make_shared<RunActivity>(clock);
  result->metrics_ = std::make_shared<RunMetrics>(run_label(setup.output()), build_info(),
                                                  result->activity_, clock);
  result->health_ = watch_gpus(setup, result->activity_);
  const RunMetrics* metrics = result->metrics_.get();
  MetricsAnswers answers;
  answers.page = [metrics] {
    MetricsPage page;
    metrics->collect(page);
    return page.text();
  };
  answers.run = [metrics] {
    std::string json;
    (void)google::protobuf::util::MessageToJsonString(run_record(*metrics), &json);
    return json;
  };
  answers.alive = [metrics] { return metrics->alive(); };
  answers.ready = [metrics] { return metrics->ready(); };
  answers.state = [metrics] { return metrics->state(); };
  PERCHERON_ASSIGN_OR_RETURN(result->server_, MetricsServer::start(parsed, std::move(answers)));
  return result;
}

std::string RunMetricsPage::text() const {
  return "metrics: http://" + server_->address() + "/metrics" +
         (loopback_ ? "" : ", for everyone who reaches this address: there is no password");
}

}  // namespace percheron

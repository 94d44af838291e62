#include "tools/run_metrics_page.h"

#include "tools/build_info.h"

namespace percheron {

std::string run_label(const std::string& output) {
  const size_t end = output.find_last_not_of('/');
  if (end == std::string::npos) return "/";
  const size_t slash = output.rfind('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return output.substr(begin, end + 1 - begin);
}

Result<std::unique_ptr<RunMetricsPage>> RunMetricsPage::start(const std::string& address,
                                                              const RunSetup& setup,
                                                              const Clock& clock) {
  PERCHERON_ASSIGN_OR_RETURN(const MetricsAddress parsed, parse_metrics_address(address));
  std::unique_ptr<RunMetricsPage> result(new RunMetricsPage());
  result->loopback_ = parsed.loopback();
  result->activity_ = std::make_shared<RunActivity>(clock);
  result->metrics_ = std::make_shared<RunMetrics>(run_label(setup.output()), build_info(),
                                                  result->activity_, clock);
  const RunMetrics* metrics = result->metrics_.get();
  MetricsAnswers answers;
  answers.page = [metrics] {
    MetricsPage page;
    metrics->collect(page);
    return page.text();
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

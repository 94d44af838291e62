// The page that Prometheus reads, and its server.

#include "actors/run_metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "actors/metrics_server.h"
#include "actors/run_record.h"
#include "base/file_system.h"
#include "tests/actors/tiny_run.h"
#include "tests/base/fake_clock.h"

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Values by "name{labels}", without `run`.
std::map<std::string, double> values(const std::string& page) {
  std::map<std::string, double> values;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    const size_t space = line.rfind(' ');
    std::string name = line.substr(0, space);
    name = std::regex_replace(name, std::regex(R"re(run="[^"]*",?)re"), "");
    name = std::regex_replace(name, std::regex(R"re(\{\})re"), "");
    values[name] = std::stod(line.substr(space + 1));
  }
  return values;
}

class RunMetricsTest : public testing::Test {
 protected:
  void SetUp() override { activity->begin({{"cpu:0"}, {"cpu:1", "cpu:2"}}); }
  std::map<std::string, double> scrape() const {
    MetricsPage page;
    metrics.collect(page);
    return values(page.text());
  }
  static StepReport step(int64_t number) {
    StepReport report;
    report.step = number;
    report.steps_total = 100;
    report.loss = 2.5;
    report.position_accuracy = {0.5, 0.25};
    report.tokens = 1000;
    report.samples = 10;
    report.supervised = 300;
    return report;
  }

  FakeClock clock;
  std::shared_ptr<RunActivity> activity = std::make_shared<RunActivity>(clock);
  RunMetrics metrics{"eagle3", {"0.1.0", "abc", "none"}, activity, clock};
};

TEST_F(RunMetricsTest, ReportsBecomeValues) {
  metrics.begin({.too_long = 3, .unsupervised = 2, .step = 40, .steps_total = 100});
  activity->phase({RunPhase::Step::kComputing});
  metrics.on_step(step(41));
  EvaluationReport evaluation;
  evaluation.step = 41;
  evaluation.draft_lengths = {3};
  evaluation.acceptance_length_walk = {1.75};
  metrics.on_evaluation(evaluation);
  CheckpointReport checkpoint;
  checkpoint.bytes = 1 << 20;
  checkpoint.seconds = 0.2;
  clock.advance(7);
  metrics.on_checkpoint(checkpoint);
  checkpoint.error = "no space left";
  metrics.on_checkpoint(checkpoint);

  const auto page = scrape();
  EXPECT_EQ(page.at(R"(percheron_build_info{version="0.1.0",commit="abc",cuda="none"})"), 1);
  EXPECT_EQ(page.at(R"(percheron_state{state="training"})"), 1);
  EXPECT_EQ(page.at(R"(percheron_state{state="loading"})"), 0);
  EXPECT_EQ(page.at("percheron_step"), 41);
  EXPECT_EQ(page.at("percheron_steps_planned"), 100);
  EXPECT_EQ(page.at("percheron_loss"), 2.5);
  EXPECT_EQ(page.at(R"(percheron_accept_probability{position="1"})"), 0.25);
  EXPECT_EQ(page.at(R"(percheron_samples_rejected_total{reason="too_long"})"), 3);
  EXPECT_EQ(page.at("percheron_samples_trained_total"), 10);
  EXPECT_EQ(page.at(R"(percheron_held_out_acceptance_length{draft_length="3"})"), 1.75);
  EXPECT_EQ(page.at(R"(percheron_checkpoints_total{result="failed"})"), 1);
  EXPECT_EQ(page.at("percheron_checkpoint_last_success_timestamp_seconds"), 1'700'000'007);
  EXPECT_EQ(page.at(R"(percheron_checkpoint_duration_seconds_bucket{le="0.25"})"), 2);
}

// SpecForge, speculators: counters that fall back at a resume turn rate() into nonsense.
TEST_F(RunMetricsTest, CountersNeverRunBackwardOnResume) {
  metrics.begin({.too_long = 3, .step = 0, .steps_total = 100});
  for (int64_t i = 1; i <= 20; ++i) metrics.on_step(step(i));
  activity->trainer_leased(0, 1);
  activity->trainer_settled(0, 5, 1, 0);
  const auto before = scrape();
  activity->begin({{"cpu:0"}, {"cpu:1", "cpu:2"}});
  metrics.begin({.too_long = 3, .step = 10, .steps_total = 100});  // ten steps are lost
  metrics.on_step(step(11));
  const auto after = scrape();
  EXPECT_EQ(after.at("percheron_step"), 11);
  EXPECT_EQ(after.at("percheron_steps_total"), 21);
  int counters = 0;
  for (const auto& [name, value] : before) {
    if (name.find("_total") == std::string::npos) continue;
    ++counters;
    EXPECT_GE(after.at(name), value) << name;
  }
  EXPECT_GT(counters, 15);
}

TEST_F(RunMetricsTest, WorkersThatComeAndGoAreCountedOverAResume) {
  metrics.begin({.steps_total = 100});
  EXPECT_EQ(scrape().at("percheron_membership_changes_total"), 0);
  EXPECT_EQ(scrape().count(R"(percheron_workers_present{role="trainer"})"), 0u);
  WorkersReport workers;
  workers.targets = {0};
  workers.trainers = {1};
  workers.membership_changes = 2;
  metrics.on_workers(workers);
  activity->leases_expired(WorkerKind::kTrainer, 3);
  activity->restarted(WorkerKind::kTrainer, 0);
  metrics.begin({.steps_total = 100});
  workers.trainers = {0, 1};
  workers.membership_changes = 1;
  metrics.on_workers(workers);
  const auto page = scrape();
  EXPECT_EQ(page.at("percheron_membership_changes_total"), 3);
  EXPECT_EQ(page.at(R"(percheron_workers_present{role="target"})"), 1);
  EXPECT_EQ(page.at(R"(percheron_workers_present{role="trainer"})"), 2);
  EXPECT_EQ(page.at(R"(percheron_lease_expirations_total{role="trainer"})"), 3);
  EXPECT_EQ(page.at(R"(percheron_actor_restarts_total{role="trainer"})"), 1);
}

TEST_F(RunMetricsTest, LabelsAreBoundedWhateverIsPlaced) {
  RunLayout many;
  for (int i = 0; i < 300; ++i) {
    many.target_devices.push_back("cpu:0");
    many.trainer_devices.push_back("cpu:1");
  }
  activity->begin(many);
  for (int thief = 0; thief < 300; ++thief) {
    activity->trainer_leased(thief, (thief + 7) % 300);
    activity->trainer_settled(thief, 1, 1, 0);
  }
  std::map<std::string, int> series;
  double steals = 0;
  for (const auto& [name, value] : scrape()) {
    ++series[name.substr(0, name.find('{'))];
    if (name.starts_with("percheron_steals_total")) steals += value;
  }
  EXPECT_EQ(steals, 300) << "what has no label of its own is counted all the same";
  EXPECT_LE(series["percheron_steals_total"], (kStealLabelsMax + 1) * (kStealLabelsMax + 1));
  EXPECT_LE(series["percheron_mailbox_depth"], kRankLabelsMax + 1);
  EXPECT_LE(series["percheron_busy_seconds_total"], 2 * (kRankLabelsMax + 1));
}

TEST_F(RunMetricsTest, ADeviceIsShownWhereItTells) {
  EXPECT_EQ(scrape().count(R"(percheron_gpu_power_watts{device="cuda:0"})"), 0u);
  activity->health("cuda:0", DeviceHealth{450.5, 0.75, 100, 200});
  const auto page = scrape();
  EXPECT_EQ(page.at(R"(percheron_gpu_power_watts{device="cuda:0"})"), 450.5);
  EXPECT_EQ(page.at(R"(percheron_gpu_utilization_ratio{device="cuda:0"})"), 0.75);
  EXPECT_EQ(page.at(R"(percheron_gpu_memory_bytes{device="cuda:0",kind="used"})"), 100);
}

TEST_F(RunMetricsTest, ReadinessAndLifeFollowTheRun) {
  EXPECT_FALSE(metrics.ready());
  EXPECT_TRUE(metrics.alive()) << "loading may take minutes";
  activity->phase({RunPhase::Step::kHeldOut});
  EXPECT_TRUE(metrics.ready());
  EXPECT_EQ(metrics.state(), "held_out");
  clock.advance(RunMetrics::kSilentSecondsMax + 1);
  EXPECT_FALSE(metrics.alive()) << "the supervisor hangs";
  activity->tick({});
  EXPECT_TRUE(metrics.alive());
  activity->phase({RunPhase::Step::kOver});
  clock.advance(3600);
  EXPECT_TRUE(metrics.alive()) << "the report may take long";
  metrics.fail();
  EXPECT_EQ(metrics.state(), "failed");
  EXPECT_FALSE(metrics.ready());
}

TEST_F(RunMetricsTest, TheWordsOfARunsNameAreEscaped) {
  const RunMetrics odd("a\"b\\c\nd", {}, activity, clock);
  MetricsPage page;
  odd.collect(page);
  EXPECT_THAT(page.text(), HasSubstr(R"(run="a\"b\\c\nd")"));
}

TEST_F(RunMetricsTest, ThePageAndItsDocumentListTheSameMetrics) {
  const Result<std::string> document = system_files().read_text("docs/monitoring.md");
  ASSERT_TRUE(document.ok());
  std::set<std::string> described, known;
  const std::regex row(R"re(\n\| `(percheron_[a-z_]+)` \| ([a-z]+) \| ([^|]*) \|)re");
  for (std::sregex_iterator it(document->begin(), document->end(), row), end; it != end; ++it) {
    described.insert((*it)[1].str() + " " + (*it)[2].str() + " " +
                     std::regex_replace((*it)[3].str(), std::regex("[` ]"), ""));
  }
  for (const MetricInfo& info : metric_table()) {
    const char* kind = info.kind == MetricKind::kCounter ? "counter"
                       : info.kind == MetricKind::kGauge ? "gauge"
                                                         : "histogram";
    known.insert(std::string(info.name) + " " + kind + " " +
                 std::regex_replace(std::string(info.labels), std::regex(" "), ""));
  }
  EXPECT_EQ(described, known);
}

// A real run: what it counts agrees with what it reports.
TEST(RunMetrics, OfARealRunAgreeWithItsReports) {
  proto::Run run = make_tiny_run("metrics", {.held_out = 4, .epochs = 3});
  place(run, 1, 2);
  const auto activity = std::make_shared<RunActivity>(system_clock());
  RunMetrics metrics("tiny", {}, activity, system_clock());
  metrics.begin({});
  const std::atomic<int> signals{0};
  RunEnvironment environment{system_files(), system_clock(), metrics, signals};
  environment.activity = activity;
  const Result<RunSummary> summary = train(run, environment);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  MetricsPage page;
  metrics.collect(page);
  const auto seen = values(page.text());
  EXPECT_EQ(seen.at("percheron_step"), summary->steps);
  EXPECT_EQ(seen.at("percheron_tokens_trained_total"), summary->tokens);
  EXPECT_EQ(seen.at("percheron_samples_trained_total"), 3 * 24);
  EXPECT_EQ(seen.at(R"(percheron_state{state="ended"})"), 1);
  double steals = 0, batches = 0, waiting = 0;
  for (const auto& [name, value] : seen) {
    if (name.starts_with("percheron_steals_total")) steals += value;
    if (name.starts_with("percheron_mailbox_depth")) waiting += value;
    if (name.starts_with("percheron_prefetched_micro_batches")) waiting += value;
    if (name.starts_with("percheron_micro_batches_total{role=\"trainer\"")) batches += value;
  }
  EXPECT_EQ(steals, counter(*summary, "steals"));
  EXPECT_EQ(waiting, 0) << "all is used up";
  EXPECT_EQ(seen.at(R"(percheron_step_duration_seconds_count{phase="compute"})"), summary->steps);
  EXPECT_GE(batches, summary->steps);
  EXPECT_GT(seen.at(R"(percheron_busy_seconds_total{role="target",rank="0",device="cpu:0"})"), 0);
}

// `percheron top` shows it as it shows a node's.
TEST(RunRecord, SaysOfARunWhatANodeWouldSay) {
  proto::Run run = make_tiny_run("record", {.held_out = 4, .epochs = 3});
  place(run, 1, 2);
  const auto activity = std::make_shared<RunActivity>(system_clock());
  RunMetrics metrics("tiny", {}, activity, system_clock());
  EXPECT_EQ(run_record(metrics).runs(0).report().state(), proto::RunReport::STARTING);
  const std::atomic<int> signals{0};
  RunEnvironment environment{system_files(), system_clock(), metrics, signals};
  environment.activity = activity;
  const Result<RunSummary> summary = train(run, environment);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  const proto::ControlReply reply = run_record(metrics);
  const proto::RunReport& report = reply.runs(0).report();
  EXPECT_EQ(reply.runs(0).id(), "tiny");
  EXPECT_EQ(report.state(), proto::RunReport::DONE);
  EXPECT_EQ(report.step(), summary->steps);
  EXPECT_GT(report.acceptance_length(), 0);
  int targets = 0, trainers = 0;
  double samples = 0;
  for (const proto::WorkerState& worker : report.workers()) {
    for (const proto::ActorState& actor : worker.actors()) {
      ++(actor.role() == proto::ActorMessage::TARGET ? targets : trainers);
      EXPECT_GT(actor.busy_seconds(), 0);
      if (actor.role() == proto::ActorMessage::TRAINER) {
        samples += static_cast<double>(actor.samples());
      }
    }
  }
  EXPECT_EQ(targets, 1);
  EXPECT_EQ(trainers, 2);
  EXPECT_EQ(samples, 3 * 24);
  // Whoever may read metrics may not know more.
  EXPECT_THAT(reply.DebugString(), Not(HasSubstr(run.output().directory())));
}

// --- the server ----------------------------------------------------------------------------------

/// What the server at `port` answers to `request`.
std::string talk(int port, const std::string& request) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(send(socket, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 4096> buffer;
  for (ssize_t count; (count = recv(socket, buffer.data(), buffer.size(), 0)) > 0;) {
    answer.append(buffer.data(), static_cast<size_t>(count));
  }
  close(socket);
  return answer;
}

std::string get(int port, const std::string& path, const std::string& method = "GET") {
  return talk(port, method + " " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
}

int port_of(const MetricsServer& server) {
  return std::stoi(server.address().substr(server.address().rfind(':') + 1));
}

MetricsAnswers answers(bool ready) {
  return {[] { return std::string("percheron_step 1\n"); }, [] { return true; },
          [ready] { return ready; }, [] { return std::string("loading"); }};
}

TEST(MetricsServer, AnswersItsThreePathsAndNothingElse) {
  const auto server = MetricsServer::start({}, answers(false));
  ASSERT_TRUE(server.ok()) << server.status().message();
  const int port = port_of(**server);
  EXPECT_GT(port, 0);
  EXPECT_THAT(get(port, "/metrics"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("version=0.0.4"),
                                           HasSubstr("\r\n\r\npercheron_step 1\n")));
  EXPECT_THAT(get(port, "/healthz"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("loading")));
  EXPECT_THAT(get(port, "/readyz"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("loading")));
  EXPECT_THAT(get(port, "/metrics", "HEAD"),
              AllOf(StartsWith("HTTP/1.1 200"), Not(HasSubstr("percheron_step"))));
  EXPECT_THAT(get(port, "/metrics", "POST"), StartsWith("HTTP/1.1 405"));
  for (const char* path : {"/", "/metrics/", "/etc/passwd", "/../../etc/passwd", "/metricsx"}) {
    EXPECT_THAT(get(port, path), Not(StartsWith("HTTP/1.1 200"))) << path;
  }
}

TEST(MetricsServer, SurvivesWhatIsNoHttp) {
  const auto server = MetricsServer::start({}, answers(true));
  ASSERT_TRUE(server.ok());
  const int port = port_of(**server);
  for (const std::string& request :
       {std::string("\r\n\r\n"), std::string(20000, 'a') + "\r\n\r\n", std::string("GET\r\n\r\n"),
        std::string("\0\1\2\3\r\n\r\n", 8), std::string("GET /%00 HTTP/9.9\r\n\r\n")}) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    (void)send(socket, request.data(), request.size(), MSG_NOSIGNAL);
    close(socket);
  }
  EXPECT_THAT(get(port, "/readyz"), StartsWith("HTTP/1.1 200"));
}

TEST(MetricsServer, APortInUseIsOneError) {
  const auto first = MetricsServer::start({}, answers(true));
  ASSERT_TRUE(first.ok());
  const auto second = MetricsServer::start({"127.0.0.1", port_of(**first)}, answers(true));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(),
              AllOf(HasSubstr((*first)->address()), HasSubstr("in use"), Not(HasSubstr("\n"))));
}

TEST(MetricsAddress, IsLoopbackUnlessToldOtherwise) {
  const auto parsed = [](const char* text) {
    const Result<MetricsAddress> address = parse_metrics_address(text);
    return address.ok() ? address->host + " " + std::to_string(address->port)
                        : std::string("refused");
  };
  EXPECT_EQ(parsed("9464"), "127.0.0.1 9464");
  EXPECT_EQ(parsed(":9464"), "127.0.0.1 9464");
  EXPECT_EQ(parsed("0"), "127.0.0.1 0");
  EXPECT_EQ(parsed("localhost:1"), "127.0.0.1 1");
  EXPECT_EQ(parsed("0.0.0.0:9464"), "0.0.0.0 9464");
  EXPECT_EQ(parsed("[::1]:9464"), "::1 9464");
  for (const char* bad : {"", ":", "x", "65536", "-1", "1.2.3:80", "a.example:80", "::1:80", "80x",
                          "127.0.0.1", "127.0.0.1:80,0.0.0.0:81", "[::1]", "+80", " 80"}) {
    EXPECT_EQ(parsed(bad), "refused") << bad;
  }
  EXPECT_TRUE(MetricsAddress{}.loopback());
  EXPECT_FALSE((MetricsAddress{"0.0.0.0", 1}).loopback());
}

}  // namespace
}  // namespace percheron

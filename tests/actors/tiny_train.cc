// Trains as a process of its own, so that a test can kill it at any moment:
// tiny_train RUN.textproto
#include <google/protobuf/text_format.h>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "actors/train.h"

namespace {

std::atomic<int> signals{0};

void count_signal(int) { ++signals; }

class Printer final : public percheron::RunObserver {
 public:
  void on_step(const percheron::StepReport& report) override {
    std::printf("step %lld %.17g\n", static_cast<long long>(report.step), report.loss);
    std::fflush(stdout);
  }
  void on_event(const std::string& text) override {
    std::printf("event %s\n", text.c_str());
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::signal(SIGTERM, count_signal);
  const auto text = percheron::system_files().read_text(argv[1]);
  percheron::proto::Run run;
  if (!text.ok() || !google::protobuf::TextFormat::ParseFromString(*text, &run)) return 2;
  Printer printer;
  const auto summary = percheron::train(
      run, {percheron::system_files(), percheron::system_clock(), printer, signals});
  if (!summary.ok()) {
    std::printf("error %s\n", summary.status().message().c_str());
    return 1;
  }
  return 0;
}

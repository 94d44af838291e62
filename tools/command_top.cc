// `percheron top`: the runs of a cluster on a person's screen.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "actors/node/run_book.h"
#include "base/clock.h"
#include "tools/commands.h"
#include "tools/node_access.h"
#include "tools/printer.h"
#include "tools/terminal.h"
#include "tools/top_feed.h"
#include "tools/top_view.h"
#include "tools/train_source.h"

namespace percheron {
namespace {

constexpr auto kKeyWait = std::chrono::milliseconds(100);
constexpr int kFileColumns = 120;  // of text that goes to no terminal

struct TopArguments {
  NodeAccess at;
  std::string run;
  std::string metrics;  // of a `percheron train`, in place of a node
  double interval = 1;
  bool once = false, plain = false, json = false;

  std::chrono::milliseconds wait() const {
    return std::chrono::milliseconds(static_cast<int64_t>(interval * 1000));
  }
};

double now() { return static_cast<double>(system_clock().monotonic_ns()) * 1e-9; }

void print_text(const TopView& view, Printer& out) {
  for (const ScreenLine& line : view.text(output_columns(kFileColumns), now())) {
    out.print("{}\n", line.text());
  }
}

/// Rates are those between two looks, so the first is shown after the second.
Status print_once(const TopArguments& arguments, TopSource& source, TopView& view) {
  std::this_thread::sleep_for(arguments.wait());
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, source.look());
  view.update(reply, now());
  Printer out(stdout);
  print_text(view, out);
  return out.status();
}

/// Until the run that was named is over, or for ever.
Status print_always(const TopArguments& arguments, TopSource& source, TopView& view) {
  Printer out(stdout);
  while (true) {
    std::this_thread::sleep_for(arguments.wait());
    PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, source.look());
    view.update(reply, now());
    print_text(view, out);
    out.write("\n");
    PERCHERON_RETURN_IF_ERROR(out.status());
    if (!arguments.run.empty() && run_is_over(reply.runs(0).report().state())) return ok_status();
  }
}

/// The signal that ended it, or 0.
Result<int> show_screen(const TopArguments& arguments, TopSource& source, TopView& view) {
  TopFeed feed(source, arguments.wait());
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Terminal> terminal, Terminal::open());
  while (!view.quits() && terminal->end_signal() == 0) {
    TopFeed::News news = feed.take();
    if (news.reply) view.update(*news.reply, now());
    if (!news.lost.empty()) view.lost(news.lost);
    if (news.answer) view.answered(*news.answer);
    terminal->show(view.render(terminal->width(), terminal->height(), now()));
    if (const std::optional<TopKey> key = terminal->read_key(kKeyWait)) {
      if (const std::optional<TopOrder> order = view.key(*key)) feed.order(*order);
    }
  }
  return terminal->end_signal();
}

Result<std::unique_ptr<TopSource>> open_source(const TopArguments& arguments) {
  if (arguments.metrics.empty()) {
    return std::unique_ptr<TopSource>(std::make_unique<NodeSource>(arguments.at, arguments.run));
  }
  PERCHERON_ASSIGN_OR_RETURN(const NodeAddress address,
                             TrainSource::parse_address(arguments.metrics));
  return std::unique_ptr<TopSource>(std::make_unique<TrainSource>(address));
}

Status top(const TopArguments& arguments) {
  if (arguments.json) {
    return invalid_argument("top is for people: `percheron status --json` says the same as JSON");
  }
  TopView view(arguments.run);
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<TopSource> opened, open_source(arguments));
  TopSource& source = *opened;
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, source.look());
  view.update(reply, now());
  if (arguments.once || (!arguments.plain && !output_is_terminal())) {
    return print_once(arguments, source, view);
  }
  if (arguments.plain || !has_screen()) return print_always(arguments, source, view);
  PERCHERON_ASSIGN_OR_RETURN(const int signal, show_screen(arguments, source, view));
  // Whoever sent it is told that it did what it does; Ctrl-C is how many quit.
  if (signal != 0 && signal != SIGINT) std::raise(signal);
  return ok_status();
}

}  // namespace

void add_top_command(CLI::App& app, Command& chosen) {
  auto arguments = std::make_shared<TopArguments>();
  CLI::App* command =
      app.add_subcommand("top", "Watch runs on a screen, and pause or resume them by a key");
  command->add_option("run", arguments->run, "Only this run");
  arguments->at.add_options(command);
  command->add_option("--interval", arguments->interval, "Seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", arguments->once,
                    "Print one look as text and end; so does an output that is no terminal");
  command->add_flag("--plain", arguments->plain,
                    "Print text at every look, without a screen, until the run is over");
  command
      ->add_option("--metrics", arguments->metrics,
                   "Watch a `percheron train --metrics` there, PORT of this machine or HOST:PORT, "
                   "in place of a node")
      ->excludes("run")
      ->excludes("--node");
  command->add_flag("--json", arguments->json)->group("");
  command->footer(
      "Keys: q quit, ? help, p pause, r resume, s snapshot, tab or arrows another run. NO_COLOR=1 "
      "in the environment takes the colours away.");
  command->callback([arguments, &chosen] { chosen = [arguments] { return top(*arguments); }; });
}

}  // namespace percheron

#include "tools/top_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "actors/node/run_book.h"
#include "base/units.h"

namespace percheron {
namespace {

constexpr int kRunBarWidth = 10;
constexpr size_t kRunBarFrom = 70;  // columns that leave room for it

struct Help {
  const char *keys, *text;
};
constexpr std::array<Help, 6> kHelp = {{{"up, down, tab", "another run"},
                                        {"p", "pause the run after its step (asks first)"},
                                        {"r", "let a paused, stopped or failed run go on"},
                                        {"s", "write a checkpoint after the step"},
                                        {"?", "this help"},
                                        {"q", "quit; the runs go on"}}};

const char* verb(proto::RunOrder::Kind kind) {
  switch (kind) {
    case proto::RunOrder::PAUSE: return "pause";
    case proto::RunOrder::RESUME: return "resume";
    case proto::RunOrder::SNAPSHOT: return "snapshot";
    case proto::RunOrder::STOP: return "stop";
    case proto::RunOrder::STOP_NOW: return "stop now";
  }
  return "";
}

// Of the list of runs: as the longest needs, a third of the screen at most.
size_t name_width(const proto::ControlReply& reply, size_t screen_width) {
  size_t width = 3;
  for (const proto::RunRecord& run : reply.runs()) width = std::max(width, run.id().size());
  return std::min(width, std::max<size_t>(screen_width / 3, 8));
}

std::string nodes_text(const proto::ControlReply& reply) {
  if (reply.nodes().empty() || reply.nodes(0).name().empty()) return {};
  std::string text = "node " + reply.nodes(0).name();
  int reachable = 0, away = 0;
  for (int i = 1; i < reply.nodes_size(); ++i) ++(reply.nodes(i).reachable() ? reachable : away);
  if (reachable > 0) text += fmt::format(" and {} more", reachable);
  if (away > 0) text += fmt::format(", {} out of reach", away);
  return text;
}

}  // namespace

void TopView::update(const proto::ControlReply& reply, double now) {
  reply_ = reply;
  replied_at_ = now;
  lost_.clear();
  std::map<std::string, TopHistory> kept;
  for (const proto::RunRecord& run : reply.runs()) {
    TopHistory& history = kept[run.id()] = std::move(histories_[run.id()]);
    history.add(run.report(), now);
  }
  histories_ = std::move(kept);
  if (histories_.count(selected_) != 0) return;
  selected_.clear();
  for (const proto::RunRecord& run : reply.runs()) {  // The oldest that is not over, else the last.
    selected_ = run.id();
    if (!run_is_over(run.report().state())) break;
  }
}

void TopView::lost(const std::string& why) { lost_ = why; }

void TopView::answered(const Result<std::string>& answer) {
  said_bad_ = !answer.ok();
  said_ = answer.ok() ? *answer : answer.status().message();
  under_way_.reset();
}

const proto::RunRecord* TopView::selected() const {
  if (!reply_) return nullptr;
  for (const proto::RunRecord& run : reply_->runs()) {
    if (run.id() == selected_) return &run;
  }
  return nullptr;
}

void TopView::select(int step) {
  if (!reply_ || reply_->runs().empty()) return;
  int at = 0;
  while (at + 1 < reply_->runs_size() && reply_->runs(at).id() != selected_) ++at;
  const int count = reply_->runs_size();
  selected_ = reply_->runs((at + step + count) % count).id();
}

std::optional<TopOrder> TopView::order(const TopOrder& order) {
  if (order.run.empty()) return std::nullopt;
  if (under_way_) {
    said_bad_ = true;
    said_ =
        fmt::format("the answer to {} {} is waited for", verb(under_way_->kind), under_way_->run);
    return std::nullopt;
  }
  under_way_ = order;
  return under_way_;
}

std::optional<TopOrder> TopView::key(TopKey key) {
  if (key == TopKey::kQuit) quits_ = true;
  if (mode_ != Mode::kRuns) {
    const bool yes = mode_ == Mode::kConfirm && key == TopKey::kYes;
    mode_ = Mode::kRuns;
    return yes ? order({asked_, proto::RunOrder::PAUSE}) : std::nullopt;
  }
  said_.clear();
  switch (key) {
    case TopKey::kNext: select(1); break;
    case TopKey::kPrevious: select(-1); break;
    case TopKey::kPause:
      if (selected_.empty()) break;
      asked_ = selected_;
      mode_ = Mode::kConfirm;
      break;
    case TopKey::kResume: return order({selected_, proto::RunOrder::RESUME});
    case TopKey::kSnapshot: return order({selected_, proto::RunOrder::SNAPSHOT});
    case TopKey::kHelp: mode_ = Mode::kHelp; break;
    case TopKey::kYes:
    case TopKey::kQuit:
    case TopKey::kEscape:
    case TopKey::kOther: break;
  }
  return std::nullopt;
}

// --- what is on the screen -----------------------------------------------------------------------

ScreenLine TopView::title(double now) const {
  ScreenLine line("percheron", ScreenStyle::kTitle);
  if (reply_) {
    const int runs = reply_->runs_size();
    line.add(fmt::format("  {} run{}  {}", runs, runs == 1 ? "" : "s", nodes_text(*reply_)));
  }
  if (!lost_.empty()) {
    line.add(reply_ ? fmt::format("  as of {} ago", format_duration(now - replied_at_)) : "  ",
             ScreenStyle::kBad);
  }
  return line;
}

ScreenLine TopView::run_line(const proto::RunRecord& run, size_t width) const {
  const proto::RunReport& report = run.report();
  const bool here = run.id() == selected_;
  const double done = report.steps_total() > 0 ? static_cast<double>(report.step()) /
                                                     static_cast<double>(report.steps_total())
                                               : 0;
  const size_t names = name_width(*reply_, width);
  std::string name = run.id();
  if (name.size() > names) name = name.substr(0, names - 1) + "~";
  std::string text =
      fmt::format("{} {:<{}} {:<10} ", here ? ">" : " ", name, names, state_name(report.state()));
  if (width >= kRunBarFrom) text += share_bar(done, kRunBarWidth) + " ";
  text += fmt::format("{:>3.0f}%", 100 * done);
  if (report.state() == proto::RunReport::RUNNING) {
    text += fmt::format("  {} tokens/s",
                        format_count(static_cast<uint64_t>(report.tokens_per_second() + 0.5)));
    if (report.eta_seconds() > 0) text += ", " + format_duration(report.eta_seconds());
  } else if (!report.message().empty()) {
    text += "  " + report.message();
  }
  if (here && text.size() < width) text.append(width - text.size(), ' ');
  return ScreenLine(text, here ? ScreenStyle::kSelected : ScreenStyle::kPlain);
}

void TopView::add_runs(std::vector<ScreenLine>& lines, size_t room, size_t width) const {
  const auto count = static_cast<size_t>(reply_->runs_size());
  size_t at = 0;
  while (at + 1 < count && reply_->runs(static_cast<int>(at)).id() != selected_) ++at;
  const size_t shown = std::min(count, std::max<size_t>(room, 1));
  const size_t first = std::min(at > shown / 2 ? at - shown / 2 : 0, count - shown);
  for (size_t i = first; i < first + shown; ++i) {
    lines.push_back(run_line(reply_->runs(static_cast<int>(i)), width));
  }
  if (shown < count) {
    lines.emplace_back(fmt::format("  {} of {} runs", shown, count), ScreenStyle::kFaint);
  }
}

std::vector<ScreenLine> TopView::body(int width, int height, double now) const {
  std::vector<ScreenLine> lines = {title(now)};
  if (!lost_.empty()) {
    lines.emplace_back("no answer, trying again: " + lost_, ScreenStyle::kBad);
  } else if (!reply_) {
    lines.emplace_back("asking the node ...", ScreenStyle::kFaint);
  }
  if (!reply_) return lines;
  if (reply_->runs().empty()) {
    lines.emplace_back("no runs: `percheron submit -c run.yaml` gives the node one",
                       ScreenStyle::kFaint);
    return lines;
  }
  if (reply_->runs_size() > 1 && only_.empty()) {
    const size_t third = static_cast<size_t>(std::max(height, 0)) / 3;
    add_runs(lines, height > 0 ? third : static_cast<size_t>(reply_->runs_size()),
             static_cast<size_t>(width));
    if (height == 0 || height > 20) lines.emplace_back();
  }
  const proto::RunRecord* run = selected();
  const TopSnapshot snapshot = top_snapshot(*run, histories_.at(run->id()), reply_->nodes(), now);
  const int left = height > 0 ? std::max(height - static_cast<int>(lines.size()), 1) : 0;
  for (ScreenLine& line : top_screen(snapshot, width, left)) lines.push_back(std::move(line));
  return lines;
}

ScreenLine TopView::footer(int width) const {
  if (mode_ == Mode::kConfirm) {
    return ScreenLine(fmt::format("pause {} after its step? y: yes, any other key: no", asked_),
                      ScreenStyle::kSelected);
  }
  if (mode_ == Mode::kHelp) return ScreenLine("any key: back", ScreenStyle::kFaint);
  if (under_way_) {
    return ScreenLine(fmt::format("{} {} ...", verb(under_way_->kind), under_way_->run),
                      ScreenStyle::kWarning);
  }
  if (!said_.empty()) {
    return ScreenLine(said_, said_bad_ ? ScreenStyle::kBad : ScreenStyle::kGood);
  }
  const bool several = reply_ && reply_->runs_size() > 1;
  const std::string keys = fmt::format("q quit  ? help  p pause  r resume  s snapshot{}",
                                       several ? "  tab next run" : "");
  return ScreenLine(static_cast<int>(keys.size()) <= width ? keys : "q quit  ? help",
                    ScreenStyle::kFaint);
}

std::vector<ScreenLine> TopView::render(int width, int height, double now) const {
  if (width < 1 || height < 1) return {};
  std::vector<ScreenLine> lines;
  if (mode_ == Mode::kHelp) {
    lines = {title(now)};
    for (const Help& help : kHelp) {
      lines.push_back(
          ScreenLine(fmt::format("  {:<14}", help.keys), ScreenStyle::kLabel).add(help.text));
    }
  } else {
    lines = body(width, height - 1, now);
  }
  // The keys stand on the last line, whatever there is no room for.
  lines.resize(static_cast<size_t>(height) - 1);
  lines.push_back(footer(width));
  for (ScreenLine& line : lines) line.cut(static_cast<size_t>(width));
  return lines;
}

std::vector<ScreenLine> TopView::text(int width, double now) const {
  std::vector<ScreenLine> lines = body(width, 0, now);
  for (ScreenLine& line : lines) line.cut(static_cast<size_t>(width));
  return lines;
}

}  // namespace percheron

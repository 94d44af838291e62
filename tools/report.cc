#include "tools/report.h"

#include <fmt/format.h>

#include "base/units.h"
#include "tools/line_chart.h"
#include "tools/report_style.h"

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kSmoothing = 20;  // steps

double number(const Json& figures, const char* key) {
  return figures.contains(key) && figures[key].is_number() ? figures[key].get<double>() : 0.0;
}

std::string card(const std::string& value, const std::string& label) {
  return fmt::format("<div class='card'><b>{}</b><span>{}</span></div>", value, label);
}

std::string headline(const Json& figures) {
  std::string out = "<div class='cards'>";
  if (figures.contains("acceptance_length")) {
    out += card(fmt::format("{:.3f}", number(figures, "acceptance_length")),
                "acceptance length: tokens per call of the target, measured");
  }
  if (figures.contains("acceptance_length_untrained")) {
    out += card(fmt::format("{:.3f}", number(figures, "acceptance_length_untrained")),
                "with the untrained drafter");
  }
  if (figures.contains("acceptance_length_lookup")) {
    out += card(fmt::format("{:.3f}", number(figures, "acceptance_length_lookup")),
                "with prompt lookup, no model");
  }
  if (number(figures, "speedup") > 0) {
    out += card(fmt::format("{:.2f}x", number(figures, "speedup")),
                "decoding speed against the target alone");
  }
  out += card(format_count(static_cast<uint64_t>(number(figures, "steps"))), "steps");
  out += card(format_duration(number(figures, "seconds")), "features and training");
  return out + "</div>";
}

LineChart loss_chart(const MetricsHistory& history) {
  LineChart chart{"Loss", "step", fmt::format("loss, mean of {} steps", kSmoothing), {}, {}, false};
  chart.series.push_back(smoothed(history.series("train/loss", "all positions"), kSmoothing));
  return chart;
}

LineChart accuracy_chart(const MetricsHistory& history) {
  LineChart chart{
      "Accuracy by position, training rows", "step", "share of right drafts", {}, {}, true};
  const std::vector<std::string> names = history.names("train/accuracy_");
  for (const std::string& name : names) {
    if (chart.series.size() == 8) break;
    const std::string position = name.substr(std::string("train/accuracy_").size());
    chart.series.push_back(smoothed(history.series(name, "position " + position), kSmoothing));
  }
  return chart;
}

LineChart acceptance_chart(const MetricsHistory& history, const Json& figures) {
  LineChart chart{"Acceptance length on held-out conversations",
                  "step",
                  "tokens per target call",
                  {},
                  {},
                  false};
  for (const std::string& name : history.names("eval/acceptance_length_walk_")) {
    chart.series.push_back(history.series(
        name, "k = " + name.substr(std::string("eval/acceptance_length_walk_").size())));
  }
  if (number(figures, "acceptance_length_lookup_walk") > 0) {
    chart.marks.push_back({"prompt lookup", number(figures, "acceptance_length_lookup_walk")});
  }
  return chart;
}

LineChart throughput_chart(const MetricsHistory& history) {
  LineChart chart{"Throughput while busy", "step", "tokens/s", {}, {}, true};
  chart.series.push_back(
      smoothed(history.series("perf/target_tokens_per_second", "targets"), kSmoothing));
  chart.series.push_back(
      smoothed(history.series("perf/trainer_tokens_per_second", "trainers"), kSmoothing));
  chart.series.push_back(smoothed(history.series("perf/tokens_per_second", "the run"), kSmoothing));
  return chart;
}

std::string decoding_table(const Json& figures) {
  if (!figures.contains("decoding")) return "";
  std::string out =
      "<h2>Decoding the held-out prompts</h2><table><tr><th></th><th>acceptance "
      "length</th><th>tokens/s</th>"
      "<th>target calls</th><th>accepted at position 1, 2, ...</th></tr>";
  for (const auto& [name, totals] : figures["decoding"].items()) {
    std::string shares;
    for (const Json& share : totals["accepted_per_position"])
      shares += fmt::format("{:.3f} ", share.get<double>());
    out += fmt::format("<tr><td>{}</td><td>{:.3f}</td><td>{:.1f}</td><td>{}</td><td>{}</td></tr>",
                       escape_html(name), number(totals, "acceptance_length"),
                       number(totals, "tokens_per_second"),
                       static_cast<int64_t>(number(totals, "target_calls")), shares);
  }
  return out + "</table>";
}

std::string shown_prompt(const ShownPrompt& prompt) {
  std::string answer;
  for (const ShownPiece& piece : prompt.answer) {
    const std::string text = escape_html(piece.text);
    answer += piece.origin == ShownPiece::Origin::kAccepted
                  ? "<span class='accepted'>" + text + "</span>"
                  : text;
  }
  return fmt::format(
      "<div class='prompt'><p class='question'>{}</p><p class='answer'>{}</p><p "
      "class='question'>acceptance length "
      "{:.2f}</p></div>",
      escape_html(prompt.question), answer, prompt.acceptance_length);
}

}  // namespace

std::string report_html(const ReportData& data, const MetricsHistory& history) {
  std::string out = fmt::format(
      "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
      "content='width=device-width, "
      "initial-scale=1'><title>{}</title><style>{}</style></head><body><main>",
      escape_html(data.title), kReportStyle);
  out += fmt::format("<h1>{}</h1><p class='lead'>Trained and measured by Percheron.</p>",
                     escape_html(data.title));
  out += headline(data.figures);
  out += "<h2>Training</h2><div class='charts'>";
  out += line_chart_svg(acceptance_chart(history, data.figures));
  out += line_chart_svg(loss_chart(history));
  out += line_chart_svg(accuracy_chart(history));
  out += line_chart_svg(throughput_chart(history));
  out += "</div>" + decoding_table(data.figures);
  if (!data.prompts.empty()) {
    out +=
        "<h2>Three answers</h2><p class='lead'><span class='accepted'>Green</span> tokens were "
        "drafted and accepted; "
        "the others are the target's own.</p>";
    for (const ShownPrompt& prompt : data.prompts) out += shown_prompt(prompt);
  }
  out += "<h2>Settings</h2><pre>" + escape_html(data.config_yaml) + "</pre></main></body></html>\n";
  return out;
}

Status write_report(FileSystem& files, const std::string& directory, const ReportData& data,
                    const MetricsHistory& history) {
  PERCHERON_RETURN_IF_ERROR(write_text_atomically(
      files, join_path(directory, "report.json"),
      data.figures.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
  return write_text_atomically(files, join_path(directory, "report.html"),
                               report_html(data, history));
}

}  // namespace percheron

#include "tools/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/units.h"
#include "data/bucket_comparison.h"

namespace percheron {
namespace {

std::string count(int64_t n) { return format_count(static_cast<uint64_t>(n)); }
std::string rounded(double n) { return count(std::llround(n)); }

// "83.1 %", or with the least and the most of several seeds where those read differently.
std::string percent(const Spread& spread, int digits) {
  const auto text = [&](double share) { return fmt::format("{:.{}f}", 100 * share, digits); };
  const std::string least = text(spread.least()), most = text(spread.most());
  if (least == most) return least + " %";
  return fmt::format("{} % ({} - {})", text(spread.mean()), least, most);
}

std::string number(const Spread& spread) {
  if (spread.least() == spread.most()) return rounded(spread.mean());
  return fmt::format("{} ({} - {})", rounded(spread.mean()), rounded(spread.least()),
                     rounded(spread.most()));
}

std::string packing_text(const PackingArithmetic& packing, int64_t token_budget) {
  std::string out = fmt::format(
      "{} samples, {} tokens, {:.1f} on average\n", count(packing.samples), count(packing.tokens),
      static_cast<double>(packing.tokens) / static_cast<double>(packing.samples));
  const auto row = [&](const std::string& name, int64_t batches, const std::string& note) {
    out += fmt::format("  {:<34}{:>12} {}{}\n", name, count(batches),
                       batches == 1 ? "batch  " : "batches", note.empty() ? "" : "   " + note);
  };
  row("one sample a batch", packing.batches_unpacked, "");
  row(fmt::format("{} samples a batch", count(packing.samples_per_batch)),
      packing.batches_of_samples,
      packing.samples < packing.samples_per_batch
          ? rounded(packing.tokens_of_samples) + " tokens, of all samples"
          : "a full one has " + rounded(packing.tokens_of_samples) + " tokens on average");
  row(fmt::format("packed to {} tokens", count(token_budget)), packing.batches_packed,
      fmt::format("{:.2f} % filled; no packing needs fewer than {}", 100 * packing.fill,
                  count(packing.batches_packed_least)));
  return out;
}

std::string orders_table(const PlanReport& report) {
  std::string out = fmt::format(
      "\nepochs of at most {} tokens a micro-batch, padded ones of at most {} samples, {} buckets; "
      "{} {}\n{:<10}  {:>20}  {:>24}  {:>24}  {:>7}  {:>27}  {:>23}\n",
      count(report.options.token_budget), count(report.options.batch_samples_max),
      report.options.buckets, report.seeds.count, report.seeds.count == 1 ? "seed" : "seeds",
      "order", "micro-batches", "efficiency", "budget filled", "samples", "pairs that meet again",
      "length mix of a step");
  for (const EpochOrderSimulation& order : report.orders) {
    out += fmt::format(
        "{:<10}  {:>20}  {:>24}  {:>24}  {:>7.1f}  {:>27}  {:>23}\n", epoch_order_name(order.order),
        number(order.micro_batches), percent(order.efficiency, 2), percent(order.fill, 2),
        order.samples_per_batch.mean(), percent(order.met_again, 3), percent(order.length_mix, 1));
  }
  return out +
         "efficiency: tokens of samples among those computed; samples: of a micro-batch;\n"
         "pairs that meet again: of the samples that share a micro-batch, in the next epoch "
         "too;\n" +
         fmt::format(
             "length mix: share of the variance of lengths within a step of {} "
             "micro-batch{} (0: one length a step)\n",
             report.micro_batches_per_step, report.micro_batches_per_step == 1 ? "" : "es");
}

std::string quarters_table(const PlanReport& report) {
  std::string out = fmt::format(
      "\n{} batches of {} buckets, {} {}; each bucket's share of the batches of each quarter of "
      "the epoch, in %\n{:<7}{:>11}{:>8}  ",
      count(report.batch_orders[0].batches), report.counts.size(), report.seeds.count,
      report.seeds.count == 1 ? "seed" : "seeds", "bucket", "batches", "share");
  for (const BatchOrderSimulation& order : report.batch_orders)
    out += fmt::format("  {:^28}", batch_order_name(order.order));
  out += '\n';
  for (size_t bucket = 0; bucket < report.counts.size(); ++bucket) {
    out += fmt::format("{:<7}{:>11}{:>8.2f}  ", bucket + 1, count(report.counts[bucket]),
                       100 * report.batch_orders[0].shares[bucket]);
    for (const BatchOrderSimulation& order : report.batch_orders) {
      out += "  ";
      for (const Spread& quarter : order.quartile_shares[bucket])
        out += fmt::format("{:>7.2f}", 100 * quarter.mean());
    }
    out += '\n';
  }
  return out;
}

std::string runs_text(const BatchOrderSimulation& order) {
  constexpr size_t kRunsShown = 5;
  std::string out;
  for (size_t n = 1; n < std::min(order.runs.size(), kRunsShown); ++n)
    out += fmt::format("  runs of {}: {}", n, number(order.runs[n]));
  out += "\n  longest run: ";
  if (order.longest_runs.size() > kRunsShown) {
    return out + fmt::format("{} - {}", count(order.longest_runs.begin()->first),
                             count(order.longest_runs.rbegin()->first));
  }
  std::string separator;
  for (const auto& [length, seeds] : order.longest_runs) {
    out +=
        fmt::format("{}{} ({} {})", separator, count(length), seeds, seeds == 1 ? "seed" : "seeds");
    separator = ", ";
  }
  return out;
}

std::string batch_orders_text(const PlanReport& report) {
  std::string out = quarters_table(report);
  for (const BatchOrderSimulation& order : report.batch_orders) {
    out += fmt::format(
        "{}\n  a quarter's share differs by at most {} points; every bucket has batches left until "
        "{} of the epoch\n{}\n",
        batch_order_name(order.order),
        fmt::format("{:.3f} ({:.3f} - {:.3f})", 100 * order.quartile_deviation_max.mean(),
                    100 * order.quartile_deviation_max.least(),
                    100 * order.quartile_deviation_max.most()),
        percent(order.all_present_until, 2), runs_text(order));
  }
  if (std::ranges::equal(report.counts, published::kBatches)) {
    out += fmt::format(
        "published for these counts, interleaved: quarters within 0.1 points; runs of 1, 2, 3: {}, "
        "{}, {}; longest run 3\n",
        count(published::kRuns[1]), count(published::kRuns[2]), count(published::kRuns[3]));
  }
  return out;
}

nlohmann::ordered_json spread_json(const Spread& spread) {
  return {{"mean", spread.mean()}, {"least", spread.least()}, {"most", spread.most()}};
}

nlohmann::ordered_json packing_json(const PackingArithmetic& packing) {
  return {{"samples", packing.samples},
          {"tokens", packing.tokens},
          {"batches_unpacked", packing.batches_unpacked},
          {"samples_per_batch", packing.samples_per_batch},
          {"batches_of_samples", packing.batches_of_samples},
          {"tokens_of_samples", packing.tokens_of_samples},
          {"batches_packed", packing.batches_packed},
          {"batches_packed_least", packing.batches_packed_least},
          {"fill", packing.fill}};
}

nlohmann::ordered_json order_json(const EpochOrderSimulation& order) {
  return {{"order", epoch_order_name(order.order)},
          {"micro_batches", spread_json(order.micro_batches)},
          {"efficiency", spread_json(order.efficiency)},
          {"fill", spread_json(order.fill)},
          {"samples_per_batch", spread_json(order.samples_per_batch)},
          {"met_again", spread_json(order.met_again)},
          {"length_mix", spread_json(order.length_mix)}};
}

nlohmann::ordered_json batch_order_json(const BatchOrderSimulation& order) {
  nlohmann::ordered_json json{{"order", batch_order_name(order.order)},
                              {"batches", order.batches},
                              {"shares", order.shares}};
  auto& quarters = json["quartile_shares"] = nlohmann::ordered_json::array();
  for (const auto& bucket : order.quartile_shares) {
    auto& row = quarters.emplace_back(nlohmann::ordered_json::array());
    for (const Spread& quarter : bucket) row.push_back(spread_json(quarter));
  }
  json["quartile_deviation_max"] = spread_json(order.quartile_deviation_max);
  json["all_present_until"] = spread_json(order.all_present_until);
  auto& runs = json["runs"] = nlohmann::ordered_json::object();
  for (size_t n = 1; n < order.runs.size(); ++n) {
    const bool all_longer = n == static_cast<size_t>(kRunCountedMax);
    const std::string name = std::to_string(n) + (all_longer ? "_and_more" : "");
    if (order.runs[n].most() > 0) runs[name] = spread_json(order.runs[n]);
  }
  auto& longest = json["longest_runs"] = nlohmann::ordered_json::object();
  for (const auto& [length, seeds] : order.longest_runs) longest[std::to_string(length)] = seeds;
  return json;
}

}  // namespace

std::string plan_report(const PlanReport& report) {
  std::string out;
  if (report.packing) out += packing_text(*report.packing, report.options.token_budget);
  if (!report.orders.empty()) out += orders_table(report);
  if (!report.batch_orders.empty()) out += batch_orders_text(report);
  return out;
}

nlohmann::ordered_json plan_json(const PlanReport& report) {
  nlohmann::ordered_json json{{"seed", report.seeds.first}, {"seeds", report.seeds.count}};
  if (report.packing) {
    json["token_budget"] = report.options.token_budget;
    json["batch_samples_max"] = report.options.batch_samples_max;
    json["micro_batches_per_step"] = report.micro_batches_per_step;
    json["packing"] = packing_json(*report.packing);
  }
  if (!report.orders.empty()) {
    auto& orders = json["orders"] = nlohmann::ordered_json::array();
    for (const EpochOrderSimulation& order : report.orders) orders.push_back(order_json(order));
  }
  if (!report.batch_orders.empty()) {
    json["counts"] = report.counts;
    auto& orders = json["batch_orders"] = nlohmann::ordered_json::array();
    for (const BatchOrderSimulation& order : report.batch_orders)
      orders.push_back(batch_order_json(order));
  }
  return json;
}

}  // namespace percheron

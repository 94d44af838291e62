#include "model/acceptance.h"

#include <algorithm>

#include "base/check.h"

namespace percheron {
namespace {

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

int64_t accepted_prefix(std::span<const int32_t> draft, std::span<const int32_t> target) {
  const size_t limit = std::min(draft.size(), target.size());
  size_t n = 0;
  while (n < limit && draft[n] == target[n]) ++n;
  return static_cast<int64_t>(n);
}

void AcceptanceCounts::add(const Round& round) {
  PERCHERON_CHECK(0 <= round.accepted && round.accepted <= round.drafted,
                  "a round accepts at most what was drafted");
  ++rounds_;
  drafted_ += round.drafted;
  accepted_ += round.accepted;
  if (survived_.size() < static_cast<size_t>(round.drafted)) {
    survived_.resize(static_cast<size_t>(round.drafted), 0);
  }
  for (size_t j = 0; j < static_cast<size_t>(round.accepted); ++j) ++survived_[j];
}

void AcceptanceCounts::add(const AcceptanceCounts& other) {
  rounds_ += other.rounds_;
  drafted_ += other.drafted_;
  accepted_ += other.accepted_;
  if (survived_.size() < other.survived_.size()) survived_.resize(other.survived_.size(), 0);
  for (size_t j = 0; j < other.survived_.size(); ++j) survived_[j] += other.survived_[j];
}

double AcceptanceCounts::acceptance_length() const { return 1.0 + share(accepted_, rounds_); }

std::vector<double> AcceptanceCounts::accepted_per_position() const {
  std::vector<double> shares;
  for (const int64_t survived : survived_) shares.push_back(share(survived, rounds_));
  return shares;
}

std::vector<std::optional<double>> AcceptanceCounts::conditional_per_position() const {
  std::vector<std::optional<double>> shares;
  int64_t reached = rounds_;
  for (const int64_t survived : survived_) {
    shares.push_back(reached == 0 ? std::nullopt : std::optional(share(survived, reached)));
    reached = survived;
  }
  return shares;
}

void BlockAgreement::add(std::span<const uint8_t> correct, std::span<const uint8_t> valid) {
  PERCHERON_CHECK(correct.size() == valid.size(), "a block has as many verdicts as slots");
  if (valid_.size() < valid.size()) {
    valid_.resize(valid.size(), 0);
    correct_.resize(valid.size(), 0);
  }
  int64_t run = 0;
  bool any = false, running = true;
  for (size_t j = 0; j < valid.size(); ++j) {
    const bool right = valid[j] != 0 && correct[j] != 0;
    any = any || valid[j] != 0;
    running = running && right;
    run += running ? 1 : 0;
    valid_[j] += valid[j] != 0 ? 1 : 0;
    correct_[j] += right ? 1 : 0;
  }
  if (!any) return;
  ++blocks_;
  run_sum_ += run;
}

double BlockAgreement::mean_run_plus_one() const { return 1.0 + share(run_sum_, blocks_); }

std::vector<double> BlockAgreement::accuracy_per_position() const {
  std::vector<double> accuracy;
  for (size_t j = 0; j < valid_.size(); ++j) accuracy.push_back(share(correct_[j], valid_[j]));
  return accuracy;
}

double BlockAgreement::sum_of_products() const {
  double product = 1.0, sum = 0.0;
  for (const double accuracy : accuracy_per_position()) {
    product *= accuracy;
    sum += product;
  }
  return sum;
}

}  // namespace percheron

#include "tests/actors/tiny_run.h"

#include <gtest/gtest.h>

#include "base/file_system.h"
#include "base/random.h"
#include "tests/data/shards.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

constexpr int64_t kVocabulary = 97;

// Conversations that repeat themselves, so that something can be learnt.
std::vector<ShardRow> random_rows(uint64_t seed, int64_t count) {
  std::vector<ShardRow> rows;
  for (int64_t i = 0; i < count; ++i) {
    Random random = Random::keyed(seed, "row", static_cast<uint64_t>(i));
    ShardRow row;
    const uint64_t length = 8 + random.below(40);
    const uint64_t prompt = 2 + random.below(4);
    for (uint64_t t = 0; t < length; ++t) {
      row.tokens.push_back(static_cast<uint32_t>(random.below(kVocabulary / 2)));
      row.mask.push_back(t >= prompt ? 1 : 0);
    }
    row.id = "row-" + std::to_string(i);
    rows.push_back(row);
  }
  return rows;
}

// Finite in f32, beyond bf16's largest number.
constexpr uint32_t kPoison = kVocabulary - 10;
constexpr float kHuge = 3.4e38f;

std::string write_target(const std::string& directory, bool poisoned) {
  ToyModel model = make_toy_model(7);
  if (poisoned) model.tensors.at("model.embed_tokens.weight")[kPoison * 32] = kHuge;
  return model.write(directory);
}

std::string write_shard(const std::string& path, uint64_t seed, int64_t count, int64_t poisoned) {
  std::vector<ShardRow> rows = random_rows(seed, count);
  for (int64_t i = 0; i < poisoned; ++i) rows[static_cast<size_t>(5 + i)].tokens[3] = kPoison;
  ShardParts parts(rows);
  parts.passport.vocab_size = kVocabulary - 3;  // some rows of the embedding are unused
  const Status status = parts.write(system_files(), path);
  EXPECT_TRUE(status.ok()) << status.message();
  return path;
}

}  // namespace

proto::Run make_tiny_run(const std::string& name, const TinyOptions& options) {
  const std::string directory = fresh_directory(name);
  proto::Run run;
  run.mutable_target()->set_path(
      write_target(fresh_directory(name + "_target"), options.poisoned > 0));
  run.mutable_target()->set_compute_dtype(proto::Target::F32);
  proto::Drafter& drafter = *run.mutable_drafter();
  drafter.set_kind(options.dflash ? proto::Drafter::DFLASH : proto::Drafter::EAGLE3);
  for (int64_t layer : {1, 2, 3}) drafter.add_capture(layer);
  drafter.set_compute_dtype(proto::Drafter::F32);
  if (options.dflash) {
    drafter.set_layers(1);
    drafter.set_block_size(4);
  } else {
    drafter.set_draft_vocab_size(48);
    run.mutable_loss()->set_ttt_steps(3);
  }
  proto::Data& data = *run.mutable_data();
  data.add_train(write_shard(join_path(directory, "train.safetensors"), 11, options.samples,
                             options.poisoned));
  if (options.held_out > 0) {
    data.add_held_out(
        write_shard(join_path(directory, "held_out.safetensors"), 12, options.held_out, 0));
  }
  data.set_token_budget(64);
  run.mutable_optimizer()->set_learning_rate(1e-2);
  run.mutable_train()->set_epochs(options.epochs);
  run.mutable_train()->set_micro_batches_per_step(options.micro_batches_per_step);
  run.mutable_features()->set_dtype(proto::Features::F32);
  run.mutable_checkpoint()->set_every_steps(0);
  run.mutable_output()->set_directory(join_path(directory, "output"));
  place(run, 1, 1);
  return run;
}

void place(proto::Run& run, int targets, int trainers) {
  proto::Placement& placement = *run.mutable_placement();
  placement.clear_targets();
  placement.clear_trainers();
  for (int i = 0; i < targets; ++i) placement.add_targets("cpu:" + std::to_string(i));
  for (int i = 0; i < trainers; ++i) placement.add_trainers("cpu:" + std::to_string(100 + i));
  placement.set_threads(1);
}

bool RecordingObserver::heard(const std::string& part) const {
  for (const std::string& event : events_) {
    if (event.find(part) != std::string::npos) return true;
  }
  return false;
}

Result<RunSummary> train_tiny(const proto::Run& run, RunObserver& observer,
                              const std::atomic<int>* stop_signals) {
  const std::atomic<int> none{0};
  return train(run, RunEnvironment{system_files(), system_clock(), observer,
                                   stop_signals ? *stop_signals : none, 120, 1});
}

std::string latest_masters(const proto::Run& run) {
  return read_file(
      join_path(run.output().directory(), "latest/training_state/masters.safetensors"));
}

int64_t counter(const RunSummary& summary, const std::string& name) {
  for (const auto& [key, value] : summary.counters) {
    if (key == name) return value;
  }
  return -1;
}

}  // namespace percheron

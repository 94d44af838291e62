#include "actors/run_fingerprint.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/json.h"
#include "tests/actors/tiny_run.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

std::shared_ptr<const RunSetup> resolve(const proto::Run& run) {
  const auto setup = resolve_run(run, system_files());
  EXPECT_TRUE(setup.ok()) << setup.status().message();
  return setup.ok() ? *setup : nullptr;
}

struct Change {
  const char* field;
  std::function<void(proto::Run&)> change;
  bool dflash = false;
};

TEST(RunFingerprint, ResumingRefusesEveryChangeOfDrafterLossAndMoments) {
  const std::vector<Change> changes = {
      {"drafter.norm_before_residual",
       [](auto& run) { run.mutable_drafter()->set_norm_before_residual(true); }},
      {"drafter.norm_output", [](auto& run) { run.mutable_drafter()->set_norm_output(true); }},
      {"drafter.compute_dtype",
       [](auto& run) { run.mutable_drafter()->set_compute_dtype(proto::Drafter::BF16); }},
      {"target.compute_dtype",
       [](auto& run) { run.mutable_target()->set_compute_dtype(proto::Target::BF16); }},
      {"target.attention",
       [](auto& run) { run.mutable_target()->set_attention(proto::Target::CUDNN); }},
      {"target.weights", [](auto& run) { run.mutable_target()->set_weights(proto::Target::INT8); }},
      {"drafter.sliding_window",
       [](auto& run) {
         run.mutable_drafter()->add_sliding_layers(0);
         run.mutable_drafter()->set_sliding_window(8);
       },
       true},
      {"loss.step_decay", [](auto& run) { run.mutable_loss()->set_step_decay(0.7); }},
      {"loss.gamma", [](auto& run) { run.mutable_loss()->set_gamma(3); }, true},
      {"data.order", [](auto& run) { run.mutable_data()->set_order(proto::Data::SORTED); }},
      {"features.from_capture",
       [](auto& run) {
         run.mutable_features()->add_from("features");
         run.mutable_features()->add_from_capture(1);
       }},
      {"optimizer.beta1", [](auto& run) { run.mutable_optimizer()->set_beta1(0.8); }},
      {"optimizer.epsilon", [](auto& run) { run.mutable_optimizer()->set_epsilon(1e-7); }},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.field);
    proto::Run run = make_tiny_run("fingerprint", {.dflash = change.dflash});
    const auto before = resolve(run);
    change.change(run);
    const auto after = resolve(run);
    ASSERT_TRUE(before && after);
    const Status status = compare_fingerprints(resume_fingerprint(*before, "t"), "the checkpoint",
                                               resume_fingerprint(*after, "t"), "this run");
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(change.field), std::string::npos) << status.message();
  }
}

TEST(RunFingerprint, NamesTheLimitsOfAnOrderThatPads) {
  proto::Run run = make_tiny_run("order");
  EXPECT_EQ(resume_fingerprint(*resolve(run), "t").find("data.order"), nullptr)
      << "checkpoints from before the padded orders must go on";
  run.mutable_data()->set_order(proto::Data::BUCKETED);
  run.mutable_data()->set_buckets(3);
  const Fingerprint fingerprint = resume_fingerprint(*resolve(run), "t");
  EXPECT_EQ(*fingerprint.find("data.order"), "bucketed");
  EXPECT_EQ(*fingerprint.find("data.buckets"), "3");
  EXPECT_EQ(*fingerprint.find("data.batch_samples_max"), "64");
}

TEST(RunFingerprint, SpelledOutDefaultsChangeNothing) {
  proto::Run run = make_tiny_run("spelled_out");
  const auto before = resolve(run);
  run.mutable_loss()->set_kind(proto::Loss::SOFT_CE);
  run.mutable_loss()->set_mask_shift(2);
  run.mutable_loss()->set_denominator(proto::Loss::SUPERVISED);
  run.mutable_loss()->set_gamma(3);  // which EAGLE-3 never reads
  run.mutable_optimizer()->set_beta1(0.9);
  run.mutable_data()->set_too_long(proto::Data::REFUSE);
  run.mutable_data()->set_order(proto::Data::PACKED);
  const auto after = resolve(run);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(resume_fingerprint(*before, "t"), resume_fingerprint(*after, "t"));
}

TEST(RunFingerprint, RatesAndScheduleMayChangeAndAreNamed) {
  proto::Run run = make_tiny_run("rates");
  const auto before = resolve(run);
  run.mutable_optimizer()->set_learning_rate(1e-3);
  run.mutable_schedule()->set_kind(proto::Schedule::LINEAR);
  run.mutable_train()->set_epochs(3);
  const auto after = resolve(run);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(resume_fingerprint(*before, "t"), resume_fingerprint(*after, "t"));
  EXPECT_EQ(*changeable_settings(*before).find("optimizer.learning_rate"), "0.01");
  EXPECT_EQ(*changeable_settings(*after).find("optimizer.learning_rate"), "0.001");
  EXPECT_NE(*changeable_settings(*before).find("schedule.kind"),
            *changeable_settings(*after).find("schedule.kind"));
  EXPECT_NE(*changeable_settings(*before).find("schedule.steps"),
            *changeable_settings(*after).find("schedule.steps"));
}

// The weights alone do not decide the features.
TEST(RunFingerprint, FeaturesOfAnotherTargetConfigurationAreOthers) {
  const proto::Run run = make_tiny_run("target_config");
  const auto before = resolve(run);
  const std::string path = join_path(run.target().path(), "config.json");
  const std::string text = read_file(path);
  for (const auto& [key, value] : std::vector<std::pair<std::string, nlohmann::json>>{
           {"rms_norm_eps", 1e-3},
           {"rope_scaling",
            {{"rope_type", "llama3"},
             {"factor", 8.0},
             {"low_freq_factor", 2.0},
             {"high_freq_factor", 5.0},
             {"original_max_position_embeddings", 64}}}}) {
    SCOPED_TRACE(key);
    Result<nlohmann::json> config = parse_json(text, path);
    ASSERT_TRUE(config.ok());
    (*config)[key] = value;
    write_file(path, config->dump());
    const auto after = resolve(run);
    ASSERT_TRUE(before && after);
    EXPECT_NE(run_fingerprint(*before, "t").digest(), run_fingerprint(*after, "t").digest());
    if (key != "rope_scaling") continue;
    (*config)[key]["low_freq_factor"] = 1.5;
    write_file(path, config->dump());
    const auto other = resolve(run);
    ASSERT_TRUE(other);
    EXPECT_NE(run_fingerprint(*after, "t").digest(), run_fingerprint(*other, "t").digest());
  }
}

}  // namespace
}  // namespace percheron

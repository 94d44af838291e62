#include "model/dflash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "model/parameter_list.h"
#include "tests/model/gradient_watch.h"
#include "tests/model/training_reference.h"

namespace percheron {
namespace {

constexpr int64_t kVocabulary = 23, kHidden = 10;
constexpr double kLossBound = 2e-6, kGradientBound = 2e-5;

struct Variant {
  std::string name;
  std::function<void(DrafterConfig&, LossConfig&)> change;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class DflashTraining : public testing::TestWithParam<Variant> {
 protected:
  std::unique_ptr<DflashDrafter> make(const DrafterConfig& config, uint64_t seed = 3) {
    std::vector<int32_t> ids;
    if (config.draft_vocab_size != kVocabulary) ids = small_draft_ids(kVocabulary);
    auto drafter = std::move(DflashDrafter::make(device_.context(), config, target_.parts, ids,
                                                 DType::kF32, seed))
                       .value();
    randomise(device_, seed, *drafter);
    return drafter;
  }

  Features features(const std::vector<TrainingDocument>& documents, uint64_t first_sample = 0) {
    Features features = random_features(7, documents, 3, kHidden, first_sample);
    fill_top1(target_, features);
    return features;
  }

  StepSums step(DflashDrafter& drafter, const Features& features, const LossConfig& loss) {
    return drafter.forward_backward(device_.context(), features, loss).value();
  }

  const std::vector<TrainingDocument> documents_ = {random_document(1, 12, 3, kVocabulary),
                                                    random_document(2, 9, 0, kVocabulary)};
  // Overlapping blocks, one at the very start of a document, one over its end.
  const std::vector<DflashAnchor> anchors_ = {{3, 0}, {5, 0}, {10, 0}, {12, 1}, {17, 1}};
  TestDevice device_{1};
  TrainingTarget target_{device_, 11, kVocabulary, kHidden};
};

LossConfig small_loss() {
  LossConfig loss;
  loss.hard_labels = true;
  loss.gamma = 3;
  return loss;
}

TEST_P(DflashTraining, AgreesWithTheReferenceBlockByBlock) {
  DrafterConfig config = small_dflash_config();
  LossConfig loss = small_loss();
  GetParam().change(config, loss);
  const auto drafter = make(config);
  const Features batch = features(documents_);
  const StepSums sums =
      drafter->forward_backward_at(device_.context(), batch, loss, anchors_).value();
  TrainingReference reference(device_, *drafter, target_);
  const auto value = [&] { return reference.dflash(batch, loss, anchors_); };
  EXPECT_NEAR(sums.loss / sums.weight, value(), kLossBound * std::max(1.0, std::abs(value())));
  EXPECT_LT(gradient_error(reference, value, take_gradients(device_, *drafter), sums.weight, 20, 5),
            kGradientBound);
}

// Sums over the trainers begin on what is told: it must not change any more.
TEST_P(DflashTraining, GradientsAreWholeWhenTheyAreToldDeepestFirst) {
  DrafterConfig config = small_dflash_config();
  LossConfig loss = small_loss();
  GetParam().change(config, loss);
  const auto drafter = make(config);
  GradientWatch watch(device_, *drafter);
  ASSERT_TRUE(
      drafter->forward_backward_at(device_.context(), features(documents_), loss, anchors_).ok());
  watch.expect_whole();
  watch.expect_deepest_first();
}

Variant with_teacher(const std::string& name, TeacherLoss kind) {
  return {name, [kind](DrafterConfig&, LossConfig& loss) {
            loss.hard_labels = false;
            loss.teacher_loss = kind;
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Variants, DflashTraining,
    testing::Values(
        Variant{"plain", [](DrafterConfig&, LossConfig&) {}},
        Variant{"weights_denominator",
                [](DrafterConfig&, LossConfig& loss) { loss.denominator = Denominator::kWeights; }},
        Variant{"no_decay", [](DrafterConfig&,
                               LossConfig& loss) { loss.position_weight = PositionWeight::kNone; }},
        Variant{"dpace",
                [](DrafterConfig&, LossConfig& loss) {
                  loss.position_weight = PositionWeight::kDpace;
                  loss.denominator = Denominator::kDocuments;
                }},
        Variant{"dpace_over_its_weights",
                [](DrafterConfig&, LossConfig& loss) {
                  loss.position_weight = PositionWeight::kDpace;
                  loss.denominator = Denominator::kWeights;
                  loss.dpace_alpha = 0.3;
                }},
        Variant{"no_qk_norm",
                [](DrafterConfig& config, LossConfig&) { config.body.qk_norm = false; }},
        Variant{"one_layer_block_of_two",
                [](DrafterConfig& config, LossConfig&) {
                  config.body.num_hidden_layers = 1;
                  config.block_size = 2;
                }},
        Variant{"sliding_per_slot",
                [](DrafterConfig& config, LossConfig&) {
                  config.body.sliding_window = {3, 0};
                }},
        Variant{"sliding_per_anchor_not_causal",
                [](DrafterConfig& config, LossConfig&) {
                  config.body.sliding_window = {4, 2};
                  config.window_rule = WindowRule::kPerAnchor;
                  config.causal_in_sliding_layers = false;
                }},
        Variant{"draft_vocabulary",
                [](DrafterConfig& config, LossConfig&) {
                  config.draft_vocab_size =
                      static_cast<int64_t>(small_draft_ids(kVocabulary).size());
                }},
        Variant{"draft_vocabulary_kl_gated",
                [](DrafterConfig& config, LossConfig& loss) {
                  config.draft_vocab_size =
                      static_cast<int64_t>(small_draft_ids(kVocabulary).size());
                  loss.hard_labels = false;
                  loss.teacher_loss = TeacherLoss::kKlDivergence;
                }},
        with_teacher("kl", TeacherLoss::kKlDivergence),
        with_teacher("ce", TeacherLoss::kTeacherArgmax),
        with_teacher("lk_hybrid", TeacherLoss::kHybrid),
        Variant{"mixture_dpace",
                [](DrafterConfig&, LossConfig& loss) {
                  loss.hard_labels = false;
                  loss.position_weight = PositionWeight::kDpace;
                  loss.mixture = {{TeacherLoss::kTeacherArgmax, 0.25},
                                  {TeacherLoss::kJensenShannon, 0.75}};
                }}),
    [](const testing::TestParamInfo<Variant>& info) { return info.param.name; });

using Dflash = DflashTraining;

TEST_F(Dflash, ChunkSizeChangesNothing) {
  const auto drafter = make(small_dflash_config());
  const Features batch = features(documents_);
  LossConfig loss = small_loss();
  const double whole = step(*drafter, batch, loss).loss;
  const auto gradients = take_gradients(device_, *drafter);
  for (const int64_t rows : {1, 7}) {
    loss.workspace_bytes = 2 * kVocabulary * 4 * rows;
    EXPECT_NEAR(step(*drafter, batch, loss).loss, whole, 1e-6 * whole);
    EXPECT_LT(relative_difference(take_gradients(device_, *drafter), gradients), 1e-5);
  }
}

TEST_F(Dflash, PackIsTheSumOfItsDocuments) {
  const auto drafter = make(small_dflash_config());
  const StepSums packed = step(*drafter, features(documents_), small_loss());
  const auto gradients = take_gradients(device_, *drafter);
  StepSums summed;
  for (size_t d = 0; d < documents_.size(); ++d) {
    summed.add(step(*drafter, features({documents_[d]}, d), small_loss()));
  }
  EXPECT_NEAR(summed.loss, packed.loss, 1e-6 * packed.loss);
  EXPECT_EQ(summed.weight, packed.weight);
  EXPECT_EQ(summed.position_correct, packed.position_correct);
  EXPECT_LT(relative_difference(take_gradients(device_, *drafter), gradients), 1e-5);
}

// SpecForge#470: a block sees the context before its own anchor only. States from the anchor on, of
// an overlapping block's span too, change nothing; the one just before it does.
TEST_F(Dflash, StatesFromTheAnchorOnDoNotReachABlock) {
  DrafterConfig config = small_dflash_config();
  config.block_size = 8;
  const auto drafter = make(config);
  Features batch = features({random_document(4, 14, 0, kVocabulary)});
  const std::vector<DflashAnchor> anchor = {{3, 0}};
  const auto run = [&] {
    return drafter->forward_backward_at(device_.context(), batch, small_loss(), anchor)
        .value()
        .loss;
  };
  const double loss = run();
  auto* states = reinterpret_cast<float*>(batch.hidden_states.data());
  for (int64_t i = 3 * 4 * kHidden; i < 14 * 4 * kHidden; ++i) states[i] += 1.0f;
  EXPECT_EQ(run(), loss);
  states[2 * 4 * kHidden] += 1.0f;
  EXPECT_NE(run(), loss);
}

// SpecForge#571, Automodel#2468, Model-Optimizer#2342: no anchor, no loss, no error.
TEST_F(Dflash, MicroBatchWithoutAnchorIsZeroAndTakesPart) {
  const auto drafter = make(small_dflash_config());
  TrainingDocument lonely = random_document(1, 6, 5, kVocabulary);  // one supervised token: no pair
  const StepSums sums = step(*drafter, features({lonely}), small_loss());
  EXPECT_EQ(sums.loss, 0);
  EXPECT_EQ(sums.weight, 0);
  EXPECT_EQ(sums.supervised, 1);
  for (const auto& [name, gradient] : take_gradients(device_, *drafter)) {
    EXPECT_THAT(gradient, testing::Each(0.0f)) << name;
  }
}

TEST_F(Dflash, EarlierContentsOfScratchMemoryDoNotMatter) {
  const auto drafter = make(small_dflash_config());
  const Features batch = features(documents_);
  const double loss = step(*drafter, batch, small_loss()).loss;
  const auto gradients = take_gradients(device_, *drafter);
  {
    const Arena::Scope scope(device_.context().arena);
    const std::vector<float> nan(1 << 20, std::numeric_limits<float>::quiet_NaN());
    (void)upload(device_.context(), nan, {1 << 20});
    ASSERT_TRUE(device_.context().stream.wait_idle().ok());
  }
  EXPECT_EQ(step(*drafter, batch, small_loss()).loss, loss);
  EXPECT_EQ(relative_difference(take_gradients(device_, *drafter), gradients), 0);
}

TEST_F(Dflash, AccuracyIsWithinZeroAndOne) {
  const auto drafter = make(small_dflash_config());
  const StepSums sums = step(*drafter, features(documents_), small_loss());
  ASSERT_EQ(sums.position_count.size(), 3u);
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_GT(sums.position_count[s], 0);
    EXPECT_LE(sums.position_correct[s], sums.position_count[s]);
  }
  EXPECT_LE(sums.simulated_acceptance_length(), 4);
}

TEST_F(Dflash, RefusesWhatDoesNotFit) {
  const auto error = [&](const std::function<void(DrafterConfig&)>& change) {
    DrafterConfig config = small_dflash_config();
    change(config);
    return DflashDrafter::make(device_.context(), config, target_.parts, {}, DType::kF32, 1)
        .status()
        .message();
  };
  EXPECT_THAT(error([](DrafterConfig& c) { c.mask_token_id = 23; }),
              testing::HasSubstr("mask_token_id 23"));
  EXPECT_THAT(error([](DrafterConfig& c) { c.block_size = 1; }),
              testing::HasSubstr("block_size is 1"));
  EXPECT_THAT(error([](DrafterConfig& c) { c.body.hidden_size = 12; }),
              testing::HasSubstr("hidden_size 12"));
  const auto drafter = make(small_dflash_config());
  Features batch = features(documents_);
  batch.batch.token_ids[2] = 40;
  EXPECT_THAT(drafter->forward_backward(device_.context(), batch, small_loss()).status().message(),
              testing::HasSubstr("token id 40"));
}

TEST_F(Dflash, MakeDrafterMakesTheKindThatTheConfigurationNames) {
  const auto drafter =
      make_drafter(device_.context(), small_dflash_config(), target_.parts, {}, DType::kBf16, 1);
  ASSERT_TRUE(drafter.ok());
  EXPECT_EQ((*drafter)->config().kind, DrafterKind::kDflash);
  EXPECT_EQ((*drafter)->parameters()[0]->name, "fc.weight");
}

}  // namespace
}  // namespace percheron

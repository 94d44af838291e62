#include "model/eagle3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/random.h"
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

class Eagle3Training : public testing::TestWithParam<Variant> {
 protected:
  std::unique_ptr<Eagle3Drafter> make(const DrafterConfig& config, uint64_t seed = 3) {
    std::vector<int32_t> ids;
    if (config.draft_vocab_size != kVocabulary) ids = small_draft_ids(kVocabulary);
    auto drafter = std::move(Eagle3Drafter::make(device_.context(), config, target_.parts, ids,
                                                 DType::kF32, seed))
                       .value();
    randomise(device_, seed, *drafter);
    return drafter;
  }

  Features features(const std::vector<TrainingDocument>& documents, uint64_t first_sample = 0,
                    int64_t states = 2) {
    Features features = random_features(7, documents, states, kHidden, first_sample);
    fill_top1(target_, features);
    return features;
  }

  StepSums step(Eagle3Drafter& drafter, const Features& features, const LossConfig& loss) {
    return drafter.forward_backward(device_.context(), features, loss).value();
  }

  const std::vector<TrainingDocument> documents_ = {random_document(1, 9, 3, kVocabulary),
                                                    random_document(2, 7, 0, kVocabulary)};
  TestDevice device_{1};
  TrainingTarget target_{device_, 11, kVocabulary, kHidden};
};

LossConfig small_loss() {
  LossConfig loss;
  loss.ttt_steps = 3;
  return loss;
}

// SpecForge#227: the unrolled formulas in double precision against the fast path, three steps, loss
// and gradients of every parameter (central differences).
TEST_P(Eagle3Training, AgreesWithTheUnrolledReference) {
  DrafterConfig config = small_eagle3_config();
  LossConfig loss = small_loss();
  GetParam().change(config, loss);
  const auto drafter = make(config);
  const Features batch = features(documents_, 0, static_cast<int64_t>(config.capture.size()));
  const StepSums sums = step(*drafter, batch, loss);
  TrainingReference reference(device_, *drafter, target_);
  const auto value = [&] { return reference.eagle3(batch, loss); };
  EXPECT_NEAR(sums.loss / sums.weight, value(), kLossBound * std::max(1.0, std::abs(value())));
  EXPECT_LT(gradient_error(reference, value, take_gradients(device_, *drafter), sums.weight, 25, 5),
            kGradientBound);
}

// Sums over the trainers begin on what is told: it must not change any more, though every step of
// the unrolled run adds to the same gradients.
TEST_P(Eagle3Training, GradientsAreWholeWhenTheyAreTold) {
  DrafterConfig config = small_eagle3_config();
  LossConfig loss = small_loss();
  GetParam().change(config, loss);
  const auto drafter = make(config);
  GradientWatch watch(device_, *drafter);
  step(*drafter, features(documents_, 0, static_cast<int64_t>(config.capture.size())), loss);
  watch.expect_whole();
  if (config.norm_output || config.norm_before_fc || config.fc_norm) return;
  watch.expect_deepest_first();
}

Variant with_loss(const std::string& name, TeacherLoss kind) {
  return {name, [kind](DrafterConfig&, LossConfig& loss) { loss.teacher_loss = kind; }};
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Eagle3Training,
    testing::Values(
        Variant{"plain", [](DrafterConfig&, LossConfig&) {}},
        Variant{"norm_before_residual",
                [](DrafterConfig& config, LossConfig&) { config.norm_before_residual = true; }},
        Variant{"norm_before_fc",
                [](DrafterConfig& config, LossConfig&) { config.norm_before_fc = true; }},
        Variant{"norm_output",
                [](DrafterConfig& config, LossConfig&) { config.norm_output = true; }},
        Variant{"fc_norm", [](DrafterConfig& config, LossConfig&) { config.fc_norm = true; }},
        Variant{"qk_norm", [](DrafterConfig& config, LossConfig&) { config.body.qk_norm = true; }},
        Variant{"all_norms",
                [](DrafterConfig& config, LossConfig&) {
                  config.norm_before_residual = config.norm_before_fc = true;
                  config.norm_output = config.body.qk_norm = true;
                }},
        Variant{"one_state_frozen_head",
                [](DrafterConfig& config, LossConfig&) {
                  config.capture = {2};
                  config.freeze_head = true;
                }},
        Variant{"whole_vocabulary_five_states_five_steps",
                [](DrafterConfig& config, LossConfig& loss) {
                  config.capture = {0, 1, 2, 3, 4};
                  config.draft_vocab_size = kVocabulary;
                  loss.ttt_steps = 5;
                }},
        Variant{"one_step", [](DrafterConfig&, LossConfig& loss) { loss.ttt_steps = 1; }},
        Variant{"valid_denominator_shift_one_no_gate",
                [](DrafterConfig&, LossConfig& loss) {
                  loss.denominator = Denominator::kValid;
                  loss.denominator_epsilon = 1e-5;
                  loss.mask_shift = 1;
                  loss.gate_on_draft_vocab = false;
                }},
        Variant{"all_denominator_zero_teacher",
                [](DrafterConfig&, LossConfig& loss) {
                  loss.denominator = Denominator::kAll;
                  loss.mask_shift = 0;
                  loss.right_edge = RightEdge::kZeroTeacher;
                  loss.gate_on_draft_vocab = false;
                }},
        Variant{"weights_denominator",
                [](DrafterConfig&, LossConfig& loss) { loss.denominator = Denominator::kWeights; }},
        Variant{
            "documents_denominator",
            [](DrafterConfig&, LossConfig& loss) { loss.denominator = Denominator::kDocuments; }},
        with_loss("kl", TeacherLoss::kKlDivergence), with_loss("rkl", TeacherLoss::kReverseKl),
        with_loss("jsd", TeacherLoss::kJensenShannon), with_loss("ce", TeacherLoss::kTeacherArgmax),
        with_loss("tv", TeacherLoss::kTotalVariation),
        with_loss("nla", TeacherLoss::kNegativeLogAccept),
        with_loss("lk_hybrid", TeacherLoss::kHybrid),
        Variant{"mixture",
                [](DrafterConfig&, LossConfig& loss) {
                  loss.mixture = {{TeacherLoss::kTeacherArgmax, 0.1},
                                  {TeacherLoss::kTotalVariation, 0.9}};
                }}),
    [](const testing::TestParamInfo<Variant>& info) { return info.param.name; });

using Eagle3 = Eagle3Training;

// Automodel#2428, SpecForge#466: the loss in chunks of any number of rows is the same loss.
TEST_F(Eagle3, ChunkSizeChangesNothing) {
  const auto drafter = make(small_eagle3_config());
  const Features batch = features(documents_);
  LossConfig loss = small_loss();
  const double whole = step(*drafter, batch, loss).loss;
  const auto gradients = take_gradients(device_, *drafter);
  for (const int64_t rows : {1, 7}) {
    loss.workspace_bytes = 2 * drafter->config().draft_vocab_size * 4 * rows;
    EXPECT_NEAR(step(*drafter, batch, loss).loss, whole, 1e-6 * whole);
    EXPECT_LT(relative_difference(take_gradients(device_, *drafter), gradients), 1e-5);
  }
}

// speculators#867: a pack is the sum of its documents, and so are micro-batches.
TEST_F(Eagle3, PackIsTheSumOfItsDocuments) {
  const auto drafter = make(small_eagle3_config());
  const StepSums packed = step(*drafter, features(documents_), small_loss());
  const auto gradients = take_gradients(device_, *drafter);
  StepSums summed;
  for (size_t d = 0; d < documents_.size(); ++d) {
    summed.add(step(*drafter, features({documents_[d]}, d), small_loss()));
  }
  EXPECT_NEAR(summed.loss, packed.loss, 1e-6 * packed.loss);
  EXPECT_EQ(summed.weight, packed.weight);
  EXPECT_EQ(summed.position_count, packed.position_count);
  EXPECT_EQ(summed.position_correct, packed.position_correct);
  EXPECT_EQ(summed.run_sum, packed.run_sum);
  EXPECT_LT(relative_difference(take_gradients(device_, *drafter), gradients), 1e-5);
}

// SpecForge#571, Automodel#2468: nothing to learn is a zero, not an error.
TEST_F(Eagle3, MicroBatchWithoutSupervisionIsZeroAndTakesPart) {
  const auto drafter = make(small_eagle3_config());
  const StepSums sums =
      step(*drafter, features({random_document(1, 6, 6, kVocabulary)}), small_loss());
  EXPECT_EQ(sums.loss, 0);
  EXPECT_EQ(sums.weight, 0);
  EXPECT_EQ(sums.tokens, 6);
  for (const auto& [name, gradient] : take_gradients(device_, *drafter)) {
    EXPECT_THAT(gradient, testing::Each(0.0f)) << name;
  }
}

// TorchSpec#186: what the teacher says at a closed row changes nothing.
TEST_F(Eagle3, TeacherOfAClosedRowIsNeverRead) {
  const auto drafter = make(small_eagle3_config());
  Features batch = features(documents_);
  const StepSums sums = step(*drafter, batch, small_loss());
  const auto gradients = take_gradients(device_, *drafter);
  const std::vector<int32_t> open = small_draft_ids(kVocabulary);
  auto* states = reinterpret_cast<float*>(batch.hidden_states.data());
  int closed = 0;
  for (size_t t = 0; t < batch.top1.size(); ++t) {
    if (std::count(open.begin(), open.end(), batch.top1[t]) > 0) continue;
    states[(t * 3 + 2) * kHidden] = 1e3f;
    ++closed;
  }
  ASSERT_GT(closed, 3);
  EXPECT_EQ(step(*drafter, batch, small_loss()).loss, sums.loss);
  EXPECT_EQ(relative_difference(take_gradients(device_, *drafter), gradients), 0);
}

// speculators#759: shares are shares.
TEST_F(Eagle3, AccuracyIsWithinZeroAndOne) {
  const auto drafter = make(small_eagle3_config());
  const StepSums sums = step(*drafter, features(documents_), small_loss());
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_GT(sums.position_count[k], 0);
    EXPECT_LE(sums.position_correct[k], sums.position_count[k]);
    EXPECT_LE(sums.position_weight[k], sums.position_count[k]);
  }
  EXPECT_GE(sums.simulated_acceptance_length(), 1);
  EXPECT_LE(sums.simulated_acceptance_length(), 4);
}

// speculators#788: the gradient of KL between nearly equal distributions over 32,000 tokens does
// not drown in rounding.
TEST_F(Eagle3, KlGradientOfNearlyEqualDistributionsSurvives) {
  constexpr int64_t kTokens = 32000;
  Context& context = device_.context();
  const Arena::Scope scope(context.arena);
  const TensorView loss = context.arena.take(DType::kF32, {1});
  Random random(17);
  std::vector<float> draft, teacher;
  for (int64_t i = 0; i < kTokens; ++i) {
    teacher.push_back(static_cast<float>(3 * random.normal()));
    draft.push_back(teacher.back() + static_cast<float>(1e-3 * random.normal()));
  }
  const std::vector<float> one = {1.0f};
  const TensorView z = upload(context, draft, {1, kTokens});
  const TensorView u = upload(context, teacher, {1, kTokens});
  const TensorView weight = upload(context, one, {1});
  const auto softmax = [](const std::vector<float>& logits) {
    std::vector<double> x(logits.begin(), logits.end());
    double sum = 0;
    for (double& value : x) sum += value = std::exp(value);
    for (double& value : x) value /= sum;
    return x;
  };
  context.device.ops().teacher_loss(context, TeacherLoss::kKlDivergence, z, u, weight,
                                    Gradient::kInPlace, loss, TensorView(), TensorView());
  const std::vector<float> gradient = to_host<float>(context, z).value();
  const std::vector<double> q = softmax(draft), p = softmax(teacher);
  double largest = 0, difference = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    largest = std::max(largest, std::abs(q[i] - p[i]));
    difference = std::max(difference, std::abs(gradient[i] - (q[i] - p[i])));
  }
  EXPECT_LT(difference, 1e-3 * largest);
}

TEST_F(Eagle3, EarlierContentsOfScratchMemoryDoNotMatter) {
  const auto drafter = make(small_eagle3_config());
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

TEST_F(Eagle3, FreshWeightsAreAPureFunctionOfSeedAndName) {
  const auto a =
      std::move(Eagle3Drafter::make(device_.context(), small_eagle3_config(), target_.parts,
                                    small_draft_ids(kVocabulary), DType::kF32, 5))
          .value();
  DrafterConfig frozen = small_eagle3_config();
  frozen.freeze_head = frozen.norm_before_fc = true;
  const auto b = std::move(Eagle3Drafter::make(device_.context(), frozen, target_.parts,
                                               small_draft_ids(kVocabulary), DType::kF32, 5))
                     .value();
  const std::vector<float> fc = device_.floats(a->parameters()[0]->value);
  EXPECT_EQ(fc, device_.floats(b->parameters()[1]->value));
  EXPECT_EQ(b->parameters()[0]->name, "input_norm.weight");
  EXPECT_THAT(device_.floats(b->parameters()[0]->value), testing::Each(1.0f));
  double squares = 0;
  for (const float value : fc) squares += value * value;
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(fc.size())), 0.02, 0.004);
  const Parameter& head = *b->parameters().back();
  EXPECT_FALSE(head.trainable || head.gradient.present());
  EXPECT_THAT(device_.floats(head.value.view().rows(0, 1)),
              testing::ElementsAreArray(target_.head.begin() + kHidden,
                                        target_.head.begin() + 2 * kHidden));
}

TEST_F(Eagle3, RefusesWhatDoesNotFit) {
  const auto error = [&](const std::function<void(DrafterConfig&)>& change) {
    DrafterConfig config = small_eagle3_config();
    change(config);
    return Eagle3Drafter::make(device_.context(), config, target_.parts,
                               small_draft_ids(kVocabulary), DType::kF32, 1)
        .status()
        .message();
  };
  EXPECT_THAT(error([](DrafterConfig& c) { c.body.qkv_bias = true; }),
              testing::HasSubstr("attention_bias"));
  EXPECT_THAT(error([](DrafterConfig& c) { c.body.num_hidden_layers = 2; }),
              testing::HasSubstr("num_hidden_layers is 2"));
  EXPECT_THAT(error([](DrafterConfig& c) { c.draft_vocab_size = 9; }),
              testing::HasSubstr("draft_vocab_size 9"));
  EXPECT_THAT(error([](DrafterConfig& c) { c.norm_before_fc = c.fc_norm = true; }),
              testing::HasSubstr("exclude"));
  const auto drafter = make(small_eagle3_config());
  const Result<StepSums> wrong =
      drafter->forward_backward(device_.context(), features(documents_, 0, 3), small_loss());
  EXPECT_THAT(wrong.status().message(), testing::HasSubstr("features hold 4 states of 10"));
}

}  // namespace
}  // namespace percheron

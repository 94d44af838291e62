#include "model/warm_start.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model/toy_drafter.h"

namespace percheron {
namespace {

constexpr uint64_t kSeed = 5;

DrafterChoice eagle3_choice() {
  DrafterChoice choice;
  choice.capture = {1, 2, 4};
  choice.draft_vocab_size = 60;
  return choice;
}

DrafterChoice dflash_choice() {
  DrafterChoice choice;
  choice.kind = DrafterKind::kDflash;
  choice.layers = 2;
  choice.capture = {3, 1};
  choice.block_size = 6;
  choice.mask_token_id = 96;
  return choice;
}

std::vector<float> values_of(TestDevice& device, const Drafter& drafter, const std::string& name) {
  for (const auto& parameter : drafter.parameters()) {
    if (parameter->name == name) return device.floats(parameter->value);
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

// A drafter as it is made, without the toy's larger weights.
ToyPair fresh_pair(TestDevice& device, const DrafterChoice& choice,
                   std::span<const WarmStart> parts,
                   const nlohmann::json& target = nlohmann::json::object()) {
  return make_toy_pair(device, kSeed, choice, parts, target);
}

TEST(WarmStart, OfTheHeadTakesTheRowsOfTheDraftVocabulary) {
  TestDevice device;
  constexpr std::array<WarmStart, 1> kHead = {WarmStart::kHead};
  const ToyPair pair = fresh_pair(device, eagle3_choice(), kHead);
  const std::vector<float> head = values_of(device, *pair.drafter, "lm_head.weight");
  const std::vector<float> target = device.floats(pair.target->head());
  const std::span<const int32_t> ids = pair.drafter->draft_ids();
  ASSERT_EQ(ids.size(), 60u);
  for (size_t r = 0; r < ids.size(); ++r) {
    for (size_t c = 0; c < 32; ++c) {
      EXPECT_EQ(head[r * 32 + c], target[static_cast<size_t>(ids[r]) * 32 + c]);
    }
  }
  EXPECT_EQ(values_of(device, *pair.drafter, "norm.weight"),
            device.floats(pair.target->final_norm()));
}

TEST(WarmStart, OfFcAddsTheIdentityAtTheDeepestCapturedState) {
  TestDevice device;
  constexpr std::array<WarmStart, 1> kFc = {WarmStart::kFc};
  const std::vector<std::pair<DrafterChoice, size_t>> cases = {{eagle3_choice(), 64},
                                                               {dflash_choice(), 0}};
  for (const auto& [choice, begin] : cases) {
    const ToyPair pair = fresh_pair(device, choice, kFc);
    const std::vector<float> fc = values_of(device, *pair.drafter, "fc.weight");
    const size_t columns = fc.size() / 32;
    for (size_t r = 0; r < 32; ++r) {
      for (size_t c = 0; c < columns; ++c) {
        const float wanted = c == begin + r ? 1.0f : 0.0f;
        EXPECT_NEAR(fc[r * columns + c], wanted, 0.15) << r << " " << c;
      }
    }
  }
}

TEST(WarmStart, OfTheLayerTakesTheTargetsLastOne) {
  TestDevice device;
  constexpr std::array<WarmStart, 1> kLayer = {WarmStart::kLayer};
  const ToyPair pair = fresh_pair(device, eagle3_choice(), kLayer);
  const auto target = [&](const char* name) {
    return pair.target->layer_weight(3, name).value().values;
  };
  const auto own = [&](const std::string& name) {
    return values_of(device, *pair.drafter, "midlayer." + name);
  };
  EXPECT_EQ(own("self_attn.o_proj.weight"), target("self_attn.o_proj.weight"));
  EXPECT_EQ(own("mlp.down_proj.weight"), target("mlp.down_proj.weight"));
  EXPECT_EQ(own("hidden_norm.weight"), target("input_layernorm.weight"));
  EXPECT_EQ(own("post_attention_layernorm.weight"), target("post_attention_layernorm.weight"));
  EXPECT_EQ(own("input_layernorm.weight"), std::vector<float>(32, 1.0f));
  const std::vector<float> q = own("self_attn.q_proj.weight"),
                           wanted = target("self_attn.q_proj.weight");
  for (size_t r = 0; r < 32; ++r) {
    for (size_t c = 0; c < 32; ++c) EXPECT_EQ(q[r * 64 + 32 + c], wanted[r * 32 + c]);
    for (size_t c = 0; c < 32; ++c) EXPECT_LT(std::abs(q[r * 64 + c]), 0.15);
  }
}

TEST(WarmStart, OfDflashLayersLeavesQueriesAndKeysRandom) {
  TestDevice device;
  constexpr std::array<WarmStart, 1> kLayer = {WarmStart::kLayer};
  const ToyPair pair = fresh_pair(device, dflash_choice(), kLayer);
  for (int64_t i = 0; i < 2; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    for (const char* part : {"self_attn.v_proj.weight", "self_attn.o_proj.weight",
                             "mlp.gate_proj.weight", "input_layernorm.weight"}) {
      EXPECT_EQ(values_of(device, *pair.drafter, prefix + part),
                pair.target->layer_weight(2 + i, part).value().values)
          << prefix << part;
    }
    EXPECT_NE(values_of(device, *pair.drafter, prefix + "self_attn.q_proj.weight"),
              pair.target->layer_weight(2 + i, "self_attn.q_proj.weight").value().values);
  }
}

TEST(WarmStart, SaysWhichWeightsHaveAnotherShape) {
  TestDevice device;
  Context& context = device.context();
  const ToyPair pair = make_toy_pair(device, kSeed, eagle3_choice());
  const nlohmann::json wide = {{"intermediate_size", 64}, {"head_dim", 16}};
  TargetOptions options;
  options.compute_dtype = DType::kF32;
  const auto other =
      load_target(device, make_toy_model(kSeed, wide).write(fresh_directory("wide")), options);
  constexpr std::array<WarmStart, 1> kLayer = {WarmStart::kLayer};
  const InitialValues values = warm_start(context, *pair.drafter, *other, kLayer).value();
  EXPECT_EQ(values.left.size(), 7u);
  EXPECT_NE(std::ranges::find(values.left, "midlayer.mlp.up_proj.weight: the target's is [64, 32]"),
            values.left.end());
  EXPECT_EQ(values.taken.size(), 2u);
}

// As many elements in another shape would be taken scrambled.
TEST(WarmStart, ComparesShapesNotCounts) {
  TestDevice device;
  const ToyPair pair = make_toy_pair(device, kSeed, eagle3_choice());
  const nlohmann::json other_sizes = {{"hidden_size", 48}, {"intermediate_size", 32}};
  const auto other =
      load_target(device, make_toy_model(kSeed, other_sizes).write(fresh_directory("other")));
  const std::vector<float> before = values_of(device, *pair.drafter, "midlayer.mlp.up_proj.weight");
  constexpr std::array<WarmStart, 1> kLayer = {WarmStart::kLayer};
  const InitialValues values = warm_start(device.context(), *pair.drafter, *other, kLayer).value();
  EXPECT_EQ(values.taken, (std::vector<std::string>{}));
  EXPECT_NE(std::ranges::find(values.left, "midlayer.mlp.up_proj.weight: the target's is [32, 48]"),
            values.left.end());
  EXPECT_EQ(values_of(device, *pair.drafter, "midlayer.mlp.up_proj.weight"), before);
}

// The head of a qwen3 target's last layer is read through norms that a plain EAGLE-3 layer lacks.
TEST(WarmStart, LeavesQueriesOfALayerWithNormsPerHead) {
  TestDevice device;
  Context& context = device.context();
  const ToyPair pair = make_toy_pair(device, kSeed, eagle3_choice(), {}, {{"model_type", "qwen3"}});
  constexpr std::array<WarmStart, 1> kLayer = {WarmStart::kLayer};
  const InitialValues values = warm_start(context, *pair.drafter, *pair.target, kLayer).value();
  EXPECT_EQ(values.left.size(), 2u);
  EXPECT_EQ(std::ranges::count(values.taken, "midlayer.self_attn.v_proj.weight"), 1);
}

// Writes the drafter as its step directory would be, and reads it.
DrafterFile stored(TestDevice& device, const ToyPair& pair, const ConfigExport& options,
                   const std::string& name) {
  Context& context = device.context();
  std::vector<HostTensor> tensors =
      snapshot_drafter(context, *pair.drafter, parts_of(*pair.target)).value();
  const EncodedDrafter encoded =
      encode_drafter(pair.drafter->config(), std::move(tensors), pair.drafter->draft_ids(),
                     pair.target->embedding(), options)
          .value();
  const std::string directory = fresh_directory(name);
  EXPECT_TRUE(write_drafter(system_files(), directory, encoded).ok());
  Result<DrafterFile> file = read_drafter(system_files(), directory, &pair.target->config());
  EXPECT_TRUE(file.ok()) << file.status().message();
  return *file;
}

// A drafter that was trained, written and read again drafts as before, up to bf16.
TEST(InitFrom, ReadsEveryLayoutThatIsWritten) {
  TestDevice device;
  Context& context = device.context();
  DrafterChoice reduced = dflash_choice();
  reduced.draft_vocab_size = 50;
  for (const DrafterChoice& choice : {eagle3_choice(), dflash_choice(), reduced}) {
    const ToyPair pair = make_toy_pair(device, kSeed, choice);
    for (const DrafterLayout layout :
         {DrafterLayout::kOwn, DrafterLayout::kSpecforgeHf, DrafterLayout::kSpeculators}) {
      const DrafterFile file =
          stored(device, pair, {layout, "target", "LlamaForCausalLM", 3}, "out");
      EXPECT_EQ(file.config.capture, pair.drafter->config().capture);
      EXPECT_TRUE(std::ranges::equal(file.draft_ids, pair.drafter->draft_ids()));
      EXPECT_TRUE(check_embedding(file, pair.target->embedding()).ok());
      const auto loaded =
          make_drafter_from_file(context, file, parts_of(*pair.target), DType::kF32);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      for (const auto& parameter : (*loaded)->parameters()) {
        std::vector<float> wanted = values_of(device, *pair.drafter, parameter->name);
        for (float& value : wanted) value = float_from_bf16(bf16_from_float(value));
        EXPECT_EQ(device.floats(parameter->value), wanted) << parameter->name;
      }
    }
  }
}

TEST(InitFrom, MovesHeadRowsToTheSameTokensOfAnotherVocabulary) {
  TestDevice device;
  Context& context = device.context();
  const ToyPair old = make_toy_pair(device, kSeed, eagle3_choice());
  const DrafterFile file = stored(device, old, {}, "old");
  DrafterChoice whole = eagle3_choice();
  whole.draft_vocab_size = 97;
  const ToyPair pair = make_toy_pair(device, kSeed + 1, whole);
  const std::vector<float> before = values_of(device, *pair.drafter, "lm_head.weight");
  const InitialValues values =
      init_from(context, *pair.drafter, file, pair.target->embedding()).value();
  ASSERT_EQ(values.left.size(), 1u);
  EXPECT_NE(values.left[0].find("37 of 97 rows"), std::string::npos);
  const std::vector<float> after = values_of(device, *pair.drafter, "lm_head.weight");
  const std::vector<float> stored_head = to_floats(file.tensors.at("lm_head.weight"));
  for (size_t r = 0; r < 60; ++r) {
    const auto id = static_cast<size_t>(file.draft_ids[r]);
    for (size_t c = 0; c < 32; ++c) EXPECT_EQ(after[id * 32 + c], stored_head[r * 32 + c]);
  }
  for (size_t c = 0; c < 32; ++c) EXPECT_EQ(after[7 * 32 + c], before[7 * 32 + c]);
}

TEST(InitFrom, LeavesAnFcOfOtherLayersAlone) {
  TestDevice device;
  Context& context = device.context();
  const ToyPair old = make_toy_pair(device, kSeed, eagle3_choice());
  const DrafterFile file = stored(device, old, {}, "old");
  DrafterChoice other = eagle3_choice();
  other.capture = {0, 2, 4};
  const ToyPair pair = make_toy_pair(device, kSeed + 1, other);
  const std::vector<float> before = values_of(device, *pair.drafter, "fc.weight");
  const InitialValues values =
      init_from(context, *pair.drafter, file, pair.target->embedding()).value();
  ASSERT_EQ(values.left.size(), 1u);
  EXPECT_NE(values.left[0].find("fc.weight: the file's reads layers [1, 2, 4]"), std::string::npos);
  EXPECT_EQ(values_of(device, *pair.drafter, "fc.weight"), before);
  const ToyPair dflash = make_toy_pair(device, kSeed, dflash_choice());
  EXPECT_FALSE(init_from(context, *dflash.drafter, file, dflash.target->embedding()).ok());
}

// TorchSpec#38: the target's embedding is used whatever the file holds, but not in silence.
TEST(InitFrom, SaysThatTheFilesEmbeddingIsNotTheTargets) {
  TestDevice device;
  Context& context = device.context();
  const ToyPair old = make_toy_pair(device, kSeed, eagle3_choice());
  const DrafterFile file = stored(device, old, {DrafterLayout::kSpecforgeHf, "", "", 0}, "old");
  ASSERT_TRUE(file.embedding.present());
  EXPECT_TRUE(init_from(context, *old.drafter, file, old.target->embedding()).value().left.empty());
  const ToyPair pair = make_toy_pair(device, kSeed + 1, eagle3_choice());
  const InitialValues values =
      init_from(context, *pair.drafter, file, pair.target->embedding()).value();
  ASSERT_EQ(values.left.size(), 1u);
  EXPECT_EQ(values.left[0].find("embed_tokens.weight: "), 0u) << values.left[0];
  EXPECT_NE(values.left[0].find("differs from the target's at row 0"), std::string::npos)
      << values.left[0];
}

// A head that claims to be the target's must be.
TEST(InitFrom, RefusesADflashHeadThatIsNotTheTargets) {
  TestDevice device;
  Context& context = device.context();
  DrafterChoice reduced = dflash_choice();
  reduced.draft_vocab_size = 50;
  const ToyPair pair = make_toy_pair(device, kSeed, reduced);
  const DrafterFile file = stored(device, pair, {}, "old");
  const ToyPair other = make_toy_pair(device, kSeed + 1, reduced);
  const auto loaded = make_drafter_from_file(context, file, parts_of(*other.target), DType::kF32);
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.status().message().find("lm_head.weight"), std::string::npos);
}

}  // namespace
}  // namespace percheron

#include "model/target.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using Documents = std::vector<std::vector<int32_t>>;

// The largest difference relative to the largest value.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 1e9;
  double largest = 0, scale = 1;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
    scale = std::max(scale, std::abs(double{b[i]}));
  }
  return largest / scale;
}

PackedSequences pack(const Documents& documents) {
  PackedSequences rows;
  rows.offsets.push_back(0);
  for (const auto& document : documents) {
    rows.token_ids.insert(rows.token_ids.end(), document.begin(), document.end());
    rows.offsets.push_back(static_cast<int32_t>(rows.token_ids.size()));
  }
  return rows;
}

// The captured states [T, K, H] of documents in one pack.
std::vector<float> captured_states(TestDevice& device, Target& target, const Documents& documents) {
  Context& context = device.context();
  Arena::Scope scope(context.arena);
  const PackedSequences rows = pack(documents);
  const int64_t slots =
      static_cast<int64_t>(target.options().capture.size()) + target.options().capture_last;
  const TensorView captured = context.arena.take(
      DType::kF32,
      {static_cast<int64_t>(rows.token_ids.size()), slots, target.config().hidden_size});
  const Status status = target.forward(context, rows, nullptr, captured, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return device.floats(captured);
}

// A model that only counts: layer k adds 10^k to channel 0, the embedding puts the token's id
// there.
ToyModel counting_model() {
  ToyModel model = make_toy_model(1, {{"mlp_bias", true}});
  for (auto& [name, values] : model.tensors) {
    if (name.find("norm") == std::string::npos) std::fill(values.begin(), values.end(), 0.0f);
  }
  for (int k = 1; k <= 4; ++k) {
    const std::string bias = "model.layers." + std::to_string(k - 1) + ".mlp.down_proj.bias";
    model.tensors[bias][0] = static_cast<float>(std::pow(10.0, k));
  }
  for (int id = 0; id < 97; ++id) {
    model.tensors["model.embed_tokens.weight"][static_cast<size_t>(id) * 32] =
        static_cast<float>(id) / 1024.0f;
  }
  return model;
}

// TorchSpec#87, speculators#705, vllm#43671: layer ids off by one.
TEST(Target, CaptureJIsTheStreamAfterLayerJ) {
  TestDevice device;
  const std::string directory = counting_model().write(fresh_directory("model"));
  TargetOptions options = f32_options({3, 0, 4, 1});
  options.capture_last = true;
  const auto target = load_target(device, directory, options);
  const std::vector<float> states = captured_states(device, *target, {{0}});
  const float sums[] = {0.0f, 10.0f, 110.0f, 1110.0f, 11110.0f};
  EXPECT_EQ(states[0 * 32], sums[3]);
  EXPECT_EQ(states[1 * 32], sums[0]);
  EXPECT_EQ(states[2 * 32], sums[4]);
  EXPECT_EQ(states[3 * 32], sums[1]);
  EXPECT_EQ(states[4 * 32], sums[4]);
}

TEST(Target, AllStatesAreThoseThatAreCapturedWithOrWithoutLayersInMemory) {
  TestDevice device;
  const std::string directory = make_toy_model(3).write(fresh_directory("model"));
  const Documents documents = {random_tokens(1, 9, 97), random_tokens(2, 5, 97)};
  TargetOptions options = f32_options({0, 1, 2, 3, 4});
  const auto loaded = load_target(device, directory, options);
  options.layers = false;
  const auto without = load_target(device, directory, options);
  const std::vector<float> expected = captured_states(device, *loaded, documents);
  PackedSequences rows;
  rows.offsets = {0, 9, 14};
  for (const auto& tokens : documents) {
    rows.token_ids.insert(rows.token_ids.end(), tokens.begin(), tokens.end());
  }
  const int32_t wanted[] = {0, 3, 9, 13};
  for (Target* target : {loaded.get(), without.get()}) {
    const auto states = target->all_states(device.context(), rows, wanted);
    ASSERT_TRUE(states.ok()) << states.status().message();
    ASSERT_EQ(states->size(), 4u * 5 * 32);
    for (size_t r = 0; r < 4; ++r) {
      for (size_t i = 0; i < 5 * 32; ++i) {
        EXPECT_EQ((*states)[r * 5 * 32 + i], expected[static_cast<size_t>(wanted[r]) * 5 * 32 + i]);
      }
    }
  }
  rows.token_ids[2] = 97;
  EXPECT_EQ(without->all_states(device.context(), rows, wanted).status().code(),
            StatusCode::kInvalidArgument);
}

// speculators#279: rows of a batch that get each other's states.
TEST(Target, EveryRowCarriesItsOwnToken) {
  TestDevice device;
  const std::string directory = counting_model().write(fresh_directory("model"));
  const auto target = load_target(device, directory, f32_options({0, 4}));
  const Documents documents = {{7, 7, 7}, {1}, {50, 50}, {96, 96, 96, 96}};
  const std::vector<float> states = captured_states(device, *target, documents);
  size_t row = 0;
  for (const auto& document : documents) {
    for (const int32_t token : document) {
      EXPECT_EQ(states[(row * 2 + 0) * 32], static_cast<float>(token) / 1024.0f);
      EXPECT_NEAR(states[(row * 2 + 1) * 32], 11110.0f + static_cast<float>(token) / 1024.0f, 1e-3);
      ++row;
    }
  }
}

// Decision 7 of the project: what a sample yields does not depend on what it was packed with.
TEST(Target, NeighboursDoNotChangeASampleByOneBit) {
  TestDevice device(2);
  const std::string directory = make_toy_model(3).write(fresh_directory("model"));
  const auto target = load_target(device, directory, f32_options({1, 2, 4}));
  const std::vector<int32_t> sample = random_tokens(5, 37, 97);
  const std::vector<float> alone = captured_states(device, *target, {sample});
  for (const int64_t before : {1, 3, 16, 64, 301, 700}) {
    for (const int64_t after : {0, 1, 200}) {
      Documents documents = {random_tokens(8, before, 97), sample};
      if (after > 0) documents.push_back(random_tokens(9, after, 97));
      const std::vector<float> packed = captured_states(device, *target, documents);
      const size_t begin = static_cast<size_t>(before) * 3 * 32;
      ASSERT_EQ(std::memcmp(packed.data() + begin, alone.data(), alone.size() * sizeof(float)), 0)
          << before << " rows before, " << after << " after";
    }
  }
}

// The kernel that stands in for cuDNN's on emulated devices; a window as long as the documents is
// no window, a shorter one stays with our kernel.
TEST(Target, AnotherKernelForCausalRowsGivesTheSameStates) {
  constexpr DeviceId kEmulated0{DeviceKind::kEmulated, 0};
  if (!open_device(kEmulated0, {}).ok()) GTEST_SKIP() << "no emulator here";
  const Documents documents = {random_tokens(8, 19, 97), random_tokens(5, 37, 97)};
  TargetOptions options = f32_options({4});
  options.compute_dtype = DType::kBf16;
  for (const int64_t window : {0, 37, 10}) {
    SCOPED_TRACE("window " + std::to_string(window));
    nlohmann::json config = {{"head_dim", 16}};
    if (window > 0) config.update({{"model_type", "mistral"}, {"sliding_window", window}});
    const std::string directory = make_toy_model(3, config).write(fresh_directory("attention"));
    TestDevice own(kEmulated0, {.threads = 1});
    TestDevice other(kEmulated0, {.threads = 1, .causal_attention = AttentionKernel::kCudnn});
    const std::vector<float> expected =
        captured_states(own, *load_target(own, directory, options), documents);
    testing::internal::CaptureStderr();
    const std::vector<float> states =
        captured_states(other, *load_target(other, directory, options), documents);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(log.find("emulated:0: attention by plain loops") != std::string::npos, window != 10)
        << log;
    EXPECT_LT(difference(states, expected), 0.03);
  }
}

TEST(Target, SkippedLayersChangeNothingCaptured) {
  TestDevice device;
  const std::string directory = make_toy_model(3).write(fresh_directory("model"));
  const Documents documents = {random_tokens(1, 20, 97), random_tokens(2, 9, 97)};
  TargetOptions options = f32_options({2});
  options.capture_last = true;
  const auto all = load_target(device, directory, options);
  const auto some = load_target(device, directory, f32_options({2}));
  const std::vector<float> both = captured_states(device, *all, documents);
  const std::vector<float> one = captured_states(device, *some, documents);
  for (size_t row = 0; row < 29; ++row) {
    ASSERT_EQ(std::memcmp(&both[row * 64], &one[row * 32], 32 * sizeof(float)), 0) << row;
  }
}

class Families : public testing::TestWithParam<nlohmann::json> {};

// Runs `tokens` through a cache in steps of `chunk` rows; returns all last states.
std::vector<float> chunked_states(TestDevice& device, Target& target,
                                  const std::vector<int32_t>& tokens, size_t chunk, int slot) {
  Context& context = device.context();
  auto cache = KvCache::make(context.device, target.config(), 3, 200, target.compute_dtype());
  EXPECT_TRUE(cache.ok());
  std::vector<float> all;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t end = std::min(tokens.size(), begin + chunk);
    PackedSequences rows = pack({{tokens.begin() + begin, tokens.begin() + end}});
    rows.cache_slots = {slot};
    Arena::Scope scope(context.arena);
    const TensorView last = context.arena.take(
        DType::kF32, {static_cast<int64_t>(end - begin), target.config().hidden_size});
    const Status status = target.forward(context, rows, cache->get(), {}, last);
    EXPECT_TRUE(status.ok()) << status.message();
    const std::vector<float> states = device.floats(last);
    all.insert(all.end(), states.begin(), states.end());
  }
  EXPECT_EQ((*cache)->used[static_cast<size_t>(slot)], static_cast<int64_t>(tokens.size()));
  return all;
}

// vllm#52909: a prompt fed in chunks and in one piece.
TEST_P(Families, ChunkedPrefillEqualsOneShot) {
  TestDevice device;
  const auto target =
      load_target(device, make_toy_model(4, GetParam()).write(fresh_directory("model")));
  const std::vector<int32_t> tokens = random_tokens(6, 130, 97);
  const std::vector<float> whole = last_states(device, *target, {tokens});
  for (const size_t chunk : {size_t{1}, size_t{16}, size_t{33}, size_t{130}}) {
    EXPECT_LT(difference(chunked_states(device, *target, tokens, chunk, 1), whole), 1e-5)
        << "chunks of " << chunk;
  }
}

// A drafter's rejected tokens leave rows behind that must not be seen again.
TEST_P(Families, ACutBackSequenceForgetsWhatWasRejected) {
  TestDevice device;
  Context& context = device.context();
  const auto target =
      load_target(device, make_toy_model(4, GetParam()).write(fresh_directory("model")));
  const std::vector<int32_t> tokens = random_tokens(6, 40, 97);
  auto cache = KvCache::make(context.device, target->config(), 2, 64, target->compute_dtype());
  ASSERT_TRUE(cache.ok());
  const auto feed = [&](const std::vector<int32_t>& fed) {
    PackedSequences rows = pack({fed});
    rows.cache_slots = {1};
    Arena::Scope scope(context.arena);
    const TensorView last = context.arena.take(DType::kF32, {static_cast<int64_t>(fed.size()), 32});
    EXPECT_TRUE(target->forward(context, rows, cache->get(), {}, last).ok());
    return device.floats(last);
  };
  feed({tokens.begin(), tokens.begin() + 30});
  feed({1, 2, 3, 4, 5, 6});
  (*cache)->used[1] = 30;
  const std::vector<float> states = feed({tokens.begin() + 30, tokens.end()});
  const std::vector<float> whole = last_states(device, *target, {tokens});
  EXPECT_LT(difference(states, {whole.begin() + 30 * 32, whole.end()}), 1e-5);
}

TEST_P(Families, ManySequencesInOneCacheStayApart) {
  TestDevice device;
  Context& context = device.context();
  const auto target =
      load_target(device, make_toy_model(4, GetParam()).write(fresh_directory("model")));
  const Documents documents = {random_tokens(1, 20, 97), random_tokens(2, 33, 97),
                               random_tokens(3, 7, 97)};
  auto cache = KvCache::make(context.device, target->config(), 4, 64, target->compute_dtype());
  ASSERT_TRUE(cache.ok());
  Documents begin, end;
  for (const auto& document : documents) {
    begin.push_back({document.begin(), document.begin() + 5});
    end.push_back({document.begin() + 5, document.end()});
  }
  PackedSequences rows = pack(begin);
  rows.cache_slots = {3, 0, 1};
  ASSERT_TRUE(target->forward(context, rows, cache->get(), {}, {}).ok());
  rows = pack(end);
  rows.cache_slots = {3, 0, 1};
  Arena::Scope scope(context.arena);
  const TensorView last = context.arena.take(DType::kF32, {45, 32});
  ASSERT_TRUE(target->forward(context, rows, cache->get(), {}, last).ok());
  const std::vector<float> states = device.floats(last);
  size_t row = 0;
  for (const auto& document : documents) {
    const std::vector<float> alone = last_states(device, *target, {document});
    const size_t count = (document.size() - 5) * 32;
    EXPECT_LT(difference({states.begin() + row, states.begin() + row + count},
                         {alone.begin() + 5 * 32, alone.end()}),
              1e-5);
    row += count;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         testing::Values(nlohmann::json{{"model_type", "llama"}},
                                         nlohmann::json{{"model_type", "qwen3"}, {"head_dim", 24}},
                                         nlohmann::json{{"model_type", "qwen3"},
                                                        {"head_dim", 32},
                                                        {"attention_bias", true},
                                                        {"sliding_window", 4},
                                                        {"use_sliding_window", true},
                                                        {"layer_types",
                                                         {"sliding_attention", "full_attention",
                                                          "sliding_attention", "full_attention"}}},
                                         nlohmann::json{{"model_type", "mistral"},
                                                        {"sliding_window", 6}},
                                         nlohmann::json{{"model_type", "qwen2"},
                                                        {"sliding_window", 5},
                                                        {"use_sliding_window", true},
                                                        {"max_window_layers", 2},
                                                        {"tie_word_embeddings", true}}));

TEST(Target, Top1IsTheLargestLogitInEveryChunk) {
  TestDevice device;
  Context& context = device.context();
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  const std::vector<int32_t> tokens = random_tokens(6, 700, 97);
  Arena::Scope scope(context.arena);
  const TensorView last = context.arena.take(DType::kF32, {700, 32});
  const TensorView logits = context.arena.take(DType::kF32, {700, 97});
  const TensorView ids = context.arena.take(DType::kI32, {700});
  ASSERT_TRUE(target->forward(context, pack({tokens}), nullptr, {}, last).ok());
  target->logits(context, last, logits);
  target->top1(context, last, ids);
  const std::vector<float> rows = device.floats(logits);
  const std::vector<int32_t> top = device.integers(ids);
  for (size_t n = 0; n < 700; ++n) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(n * 97);
    ASSERT_EQ(top[n], std::max_element(first, first + 97) - first) << n;
  }
}

TEST(Target, ATokenOutsideTheVocabularyIsRefusedByRow) {
  TestDevice device;
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  for (const int32_t bad : {97, -1}) {
    const Status status =
        target->forward(device.context(), pack({{1, 2}, {3, bad}}), nullptr, {}, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("token " + std::to_string(bad) + " of row 3"),
              std::string::npos)
        << status.message();
  }
}

TEST(Target, AFullCacheSlotIsRefusedAndKept) {
  TestDevice device;
  Context& context = device.context();
  const auto target = load_target(device, make_toy_model(4).write(fresh_directory("model")));
  auto cache = KvCache::make(context.device, target->config(), 2, 4, target->compute_dtype());
  ASSERT_TRUE(cache.ok());
  PackedSequences rows = pack({{1, 2, 3}});
  rows.cache_slots = {1};
  EXPECT_TRUE(target->forward(context, rows, cache->get(), {}, {}).ok());
  const Status status = target->forward(context, rows, cache->get(), {}, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("slot 1 holds 3 of 4"), std::string::npos) << status.message();
  EXPECT_EQ((*cache)->used[1], 3);
  rows = pack({{1}, {2}});
  rows.cache_slots = {0, 0};
  EXPECT_EQ(target->forward(context, rows, cache->get(), {}, {}).code(),
            StatusCode::kInvalidArgument);
}

TEST(Target, LayersThatAreLoadedLaterChangeNothing) {
  TestDevice device;
  const std::string directory = make_toy_model(4).write(fresh_directory("model"));
  TargetOptions options = f32_options({2});
  const auto whole = load_target(device, directory, options);
  options.layers = false;
  const auto later = load_target(device, directory, options);
  EXPECT_EQ(later->weights_hash(), whole->weights_hash());
  for (int time = 0; time < 2; ++time) {
    ASSERT_TRUE(later->load_layers(device.context()).ok());
    EXPECT_EQ(last_states(device, *later, {{5, 6, 7}, {8}}),
              last_states(device, *whole, {{5, 6, 7}, {8}}));
  }
}

TEST(Target, AStateThatTheTargetLacksIsRefusedAtLoad) {
  TestDevice device;
  const std::string directory = make_toy_model(4).write(fresh_directory("model"));
  const Status status =
      Target::load(system_files(), directory, device.context(), f32_options({2, 5})).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("state 5"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace percheron

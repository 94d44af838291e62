// A row that is verified among drafts must have the bits that it has when it is decoded alone:
// else drafting would change the answers at near-ties.

#include <gtest/gtest.h>

#include <cstring>

#include "model/target.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

class Verification : public testing::TestWithParam<DType> {
 protected:
  /// The residual stream [rows, H] after tokens that follow `used` cached ones.
  std::vector<float> forward(Target& target, KvCache& cache, int32_t used,
                             std::span<const int32_t> tokens) {
    Context& context = device_.context();
    const Arena::Scope scope(context.arena);
    const DecodingScope decoding(context);
    PackedSequences rows;
    rows.token_ids.assign(tokens.begin(), tokens.end());
    rows.offsets = {0, static_cast<int32_t>(tokens.size())};
    rows.cache_slots = {0};
    cache.used[0] = used;
    const TensorView last =
        context.arena.take(DType::kF32, {std::ssize(tokens), target.config().hidden_size});
    const Status status = target.forward(context, rows, &cache, {}, last);
    EXPECT_TRUE(status.ok()) << status.message();
    return device_.floats(last);
  }

  TestDevice device_;
};
INSTANTIATE_TEST_SUITE_P(Dtypes, Verification, testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_P(Verification, RowsHaveTheBitsOfRowsDecodedAlone) {
  const nlohmann::json config = {{"hidden_size", 192},       {"num_attention_heads", 6},
                                 {"num_key_value_heads", 2}, {"head_dim", 32},
                                 {"intermediate_size", 320}, {"max_position_embeddings", 256}};
  TargetOptions options;
  options.compute_dtype = GetParam();
  const std::unique_ptr<Target> target =
      load_target(device_, make_toy_model(7, config).write(fresh_directory("verify")), options);
  const std::vector<int32_t> tokens = random_tokens(3, 160, 97);
  for (const int32_t prompt : {5, 64, 130}) {
    const auto cache =
        KvCache::make(device_.context().device, target->config(), 1, 200, target->compute_dtype());
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    forward(*target, **cache, 0, std::span(tokens).first(static_cast<size_t>(prompt)));
    const auto rows = [&](int32_t from, size_t count) {
      return forward(*target, **cache, from,
                     std::span(tokens).subspan(static_cast<size_t>(from), count));
    };
    for (const size_t together : {2u, 4u, 8u, 16u}) {
      const std::vector<float> verified = rows(prompt, together);
      std::vector<float> alone;
      for (size_t i = 0; i < together; ++i) {
        const std::vector<float> row = rows(prompt + static_cast<int32_t>(i), 1);
        alone.insert(alone.end(), row.begin(), row.end());
      }
      EXPECT_EQ(std::memcmp(verified.data(), alone.data(), alone.size() * sizeof(float)), 0)
          << together << " rows after " << prompt;
    }
  }
}

}  // namespace
}  // namespace percheron

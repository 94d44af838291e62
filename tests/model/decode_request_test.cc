#include <gtest/gtest.h>

#include <limits>

#include "model/speculative.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

constexpr uint64_t kSeed = 20260102;

class DecodeRequest : public testing::Test {
 protected:
  Result<SpeculativeResult> run(int64_t new_tokens_max, int64_t draft_length,
                                const Clock& clock = system_clock()) {
    const std::vector<int32_t> prompt = {1, 2, 3};
    GenerateOptions options;
    options.new_tokens_max = new_tokens_max;
    return decode(device_.context(), *target_, nullptr, prompt, options, draft_length, clock);
  }

  TestDevice device_;
  std::unique_ptr<Target> target_ =
      load_target(device_, make_toy_model(kSeed).write(fresh_directory("plain")));
};

// Above the limits, sums of lengths would overflow.
TEST_F(DecodeRequest, HasLimitsThatItsRefusalsName) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const int64_t tokens : {int64_t{0}, kNewTokensMax + 1, kHuge}) {
    const Status status = run(tokens, 0).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << tokens;
    EXPECT_NE(status.message().find(std::to_string(kNewTokensMax)), std::string::npos);
  }
  for (const int64_t drafts : {int64_t{-1}, kDraftLengthMax + 1, kHuge}) {
    const Status status = run(5, drafts).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << drafts;
    EXPECT_NE(status.message().find(std::to_string(kDraftLengthMax)), std::string::npos);
  }
  EXPECT_TRUE(run(5, kDraftLengthMax).ok());
}

TEST_F(DecodeRequest, TakesTheTimeFromTheClockThatIsGiven) {
  class SecondAtEachLook final : public Clock {
   public:
    int64_t monotonic_ns() const override { return looks_++ * 1'000'000'000; }
    double unix_seconds() const override { return 0; }

   private:
    mutable int64_t looks_ = 0;
  };
  const SpeculativeResult result = run(4, 0, SecondAtEachLook()).value();
  EXPECT_EQ(result.rounds.size(), 3u);
  EXPECT_NEAR(result.prefill_seconds, 1, 1e-6);
  EXPECT_EQ(result.draft_seconds, 0);
  EXPECT_NEAR(result.verify_seconds, 3, 1e-6);
}

}  // namespace
}  // namespace percheron

#include <algorithm>

#include "model/speculative.h"

namespace percheron {
namespace {

/// Drafts by repeating what followed the same words earlier.
class PromptLookup final : public DraftSource {
 public:
  PromptLookup(std::span<const int32_t> prompt, int64_t longest)
      : prompt_(prompt.begin(), prompt.end()), tokens_(prompt_), longest_(longest) {}

  void reset() override {
    tokens_ = prompt_;
    started_ = false;
  }

  Result<std::vector<int32_t>> draft(Context&, ConstTensorView, std::span<const int32_t> next,
                                     int64_t count) override {
    // The first call's `next` repeats the prompt from its second token on.
    const std::span<const int32_t> fresh = started_ ? next : next.last(1);
    started_ = true;
    tokens_.insert(tokens_.end(), fresh.begin(), fresh.end());
    return continuation(count);
  }

 private:
  std::vector<int32_t> continuation(int64_t count) const {
    const auto known = static_cast<int64_t>(tokens_.size());
    for (int64_t n = std::min(longest_, known - 1); n >= 1; --n) {
      const auto gram = tokens_.end() - n;
      for (int64_t at = known - n - 1; at >= 0; --at) {
        if (!std::equal(gram, tokens_.end(), tokens_.begin() + at)) continue;
        const int64_t end = std::min(known, at + n + count);
        return {tokens_.begin() + at + n, tokens_.begin() + end};
      }
    }
    return {};
  }

  std::vector<int32_t> prompt_, tokens_;
  int64_t longest_;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<DraftSource> make_prompt_lookup(std::span<const int32_t> prompt, int64_t longest) {
  return std::make_unique<PromptLookup>(prompt, longest);
}

}  // namespace percheron

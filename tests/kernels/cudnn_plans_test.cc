// What cuDNN says to our graphs, for GPUs that are not here: it chooses an engine and compiles its
// kernel by a device's properties, and a driver that only pretends (fake_driver.cc) takes it.
// Numbers of device_properties/ are from public data. A graph that cuDNN would refuse fails here.

#include <cstdio>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/attention_library.h"

namespace percheron::cuda {
namespace {

struct Gpu {
  const char* name;
  int sm_version;
};
void PrintTo(const Gpu& gpu, std::ostream* out) { *out << gpu.name; }

class CudnnPlans : public testing::TestWithParam<Gpu> {
 protected:
  void SetUp() override {
    std::ifstream file(std::string("tests/kernels/device_properties/") + GetParam().name + ".json");
    std::stringstream text;
    text << file.rdbuf();
    const PlannedDevice device{text.str(), GetParam().sm_version};
    auto library = load_attention_library(PERCHERON_CUDNN_MODULE, &device);
    ASSERT_TRUE(library.ok()) << library.status().message();
    library_ = std::move(*library);
  }

  /// Heads as slices of the target's fused projection.
  static PackedShape shape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t documents,
                           int64_t longest) {
    const int64_t stride = (heads + 2 * kv_heads) * head_dim;
    return {.documents = documents,
            .longest = longest,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .q_stride = stride,
            .k_stride = stride,
            .v_stride = stride,
            .out_stride = heads * head_dim,
            .scale = 0.125f};
  }

  /// Plans for packs of many documents and of one; all must take one kernel.
  void expect_plans(int64_t heads, int64_t kv_heads, int64_t head_dim) {
    std::string kernel;
    for (const auto& [documents, longest] : {std::pair<int64_t, int64_t>{8, 2048},
                                             {1, 128},
                                             {1, 8192},
                                             {64, 512},
                                             {16, 4096},
                                             {1, 32768}}) {
      SCOPED_TRACE(std::to_string(documents) + " documents of up to " + std::to_string(longest));
      const auto plan = library_->plan(shape(heads, kv_heads, head_dim, documents, longest));
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_GE(plan->workspace_bytes, 0);
      EXPECT_LT(plan->workspace_bytes, 64 << 20);
      if (kernel.empty()) {
        kernel = plan->kernel;
        std::printf("%s, %ld/%ld heads of %ld: %s, %ld bytes\n", GetParam().name,
                    static_cast<long>(heads), static_cast<long>(kv_heads),
                    static_cast<long>(head_dim), kernel.c_str(),
                    static_cast<long>(plan->workspace_bytes));
      }
      EXPECT_EQ(plan->kernel, kernel);
    }
  }

  std::unique_ptr<AttentionLibrary> library_;
};
INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlans,
                         testing::Values(Gpu{"a100", 80}, Gpu{"h200", 90}, Gpu{"b200", 100},
                                         Gpu{"rtx_pro_6000", 120}),
                         [](const auto& info) { return info.param.name; });

TEST_P(CudnnPlans, Qwen3Of8B) { expect_plans(32, 8, 128); }

// Its heads are Qwen3's; its packs differ.
TEST_P(CudnnPlans, Llama31Of8BWithLongDocuments) {
  for (const int64_t longest : {65536, 131072}) {
    const auto plan = library_->plan(shape(32, 8, 128, 1, longest));
    EXPECT_TRUE(plan.ok()) << plan.status().message();
  }
}

TEST_P(CudnnPlans, SmolLM2Of135M) { expect_plans(9, 3, 64); }

TEST_P(CudnnPlans, HeadsThatAreNotSharedAndOneThatAllShare) {
  expect_plans(16, 16, 128);
  expect_plans(8, 1, 64);
}

TEST_P(CudnnPlans, ARefusalHasCudnnsReasonInOneLine) {
  const auto plan = library_->plan(shape(4, 2, 20, 8, 2048));
  ASSERT_FALSE(plan.ok());
  EXPECT_GT(plan.status().message().size(), 20u);
  EXPECT_EQ(plan.status().message().find('\n'), std::string::npos) << plan.status().message();
}

TEST_P(CudnnPlans, APlannedDeviceRunsNothing) {
  Queue queue;
  EXPECT_EQ(library_->run(queue, shape(9, 3, 64, 8, 2048), {}).code(),
            StatusCode::kFailedPrecondition);
}

TEST_P(CudnnPlans, NameSaysTheVersion) {
  EXPECT_THAT(library_->name(), testing::MatchesRegex("cuDNN 9\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace percheron::cuda

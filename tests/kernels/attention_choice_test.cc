// Which kernel runs causal attention, and what is said about it: with a library and a clock that
// the test controls.

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <fstream>

#include "gmock/gmock.h"
#include "kernels/cuda/causal_attention.h"
#include "kernels/cuda/emulated_device.h"
#include "kernels/cuda/host_attention.h"
#include "kernels/cuda/plugin_loader.h"
#include "kernels/shapes.h"

namespace percheron::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// What a library was asked for, and what it is to answer.
struct Library {
  std::vector<PackedShape> planned, run;
  Status plan_status, run_status;
};

class ScriptedLibrary final : public AttentionLibrary {
 public:
  explicit ScriptedLibrary(Library& library) : library_(library) {}
  std::string name() const override { return "cuDNN 1.2.3"; }
  Result<AttentionPlan> plan(const PackedShape& shape) override {
    library_.planned.push_back(shape);
    if (!library_.plan_status.ok()) return library_.plan_status;
    return host_.plan(shape);
  }
  Status run(Queue& queue, const PackedShape& shape, const PackedOperands& operands) override {
    library_.run.push_back(shape);
    PERCHERON_RETURN_IF_ERROR(library_.run_status);
    return host_.run(queue, shape, operands);
  }

 private:
  Library& library_;
  HostAttention host_;
};

class ScriptedTimer final : public QueueTimer {
 public:
  explicit ScriptedTimer(std::deque<double>& times) : times_(times) {}
  Result<double> time_ms(Queue&, const std::function<Status()>& work) override {
    PERCHERON_RETURN_IF_ERROR(work());
    if (times_.empty()) return internal_error("the clock stands still");
    const double time = times_.front();
    times_.pop_front();
    return time;
  }

 private:
  std::deque<double>& times_;
};

class AttentionChoice : public testing::Test {
 protected:
  AttentionChoice()
      : device_(make_emulated_device({DeviceKind::kEmulated, 0}, {.threads = 1}).value()),
        stream_(device_->make_stream()),
        arena_(*device_),
        context_{*device_, *stream_, arena_} {}

  CausalAttention choose(AttentionKernel wanted) {
    return CausalAttention({.wanted = wanted,
                            .open_library = [this]() -> Result<std::unique_ptr<AttentionLibrary>> {
                              ++opened_;
                              if (!open_status_.ok()) return open_status_;
                              return std::unique_ptr<AttentionLibrary>(
                                  std::make_unique<ScriptedLibrary>(library_));
                            },
                            .timer = std::make_unique<ScriptedTimer>(times_),
                            .tell = [this](const std::string& line) { lines_.push_back(line); }});
  }

  /// Runs documents of one length each and expects every element written.
  void run(CausalAttention& attention, int64_t documents, int64_t length,
           DType dtype = DType::kBf16, int64_t heads = 2) {
    const Arena::Scope scope(arena_);
    const int64_t rows = documents * length, d = 64;
    const TensorView qkv = arena_.take(dtype, {rows, (heads + 2) * d});
    const TensorView out = arena_.take(dtype, {rows, heads, d});
    device_->ops().fill_zero(context_, qkv);
    std::vector<int32_t> offsets, intervals;
    for (int64_t n = 0; n <= rows; ++n) {
      const auto row = static_cast<int32_t>(n), begin = static_cast<int32_t>(n / length * length);
      if (row == begin) offsets.push_back(row);
      if (n < rows) intervals.insert(intervals.end(), {begin, row + 1, 0, 0});
    }
    const auto upload = [&](const std::vector<int32_t>& values) {
      const TensorView view = arena_.take(DType::kI32, {static_cast<int64_t>(values.size())});
      device_->copy_bytes(*stream_, view.data(), values.data(), view.bytes());
      return view;
    };
    const TensorView on_device = upload(intervals), documents_on_device = upload(offsets);
    std::vector<unsigned char> bytes(out.bytes(), 0xff);
    device_->copy_bytes(*stream_, out.data(), bytes.data(), bytes.size());
    attention.run(
        context_,
        {.q = rows_of(ConstTensorView(qkv.columns(0, heads * d).heads(d))),
         .k = rows_of(ConstTensorView(qkv.columns(heads * d, (heads + 1) * d).heads(d))),
         .v = rows_of(ConstTensorView(qkv.columns((heads + 1) * d, (heads + 2) * d).heads(d))),
         .intervals = vector_of<int32_t>(on_device),
         .scale = 0.125f,
         .out = rows_of(out),
         .log_sum_exp = nullptr},
        {documents_on_device, length});
    device_->copy_bytes(*stream_, bytes.data(), out.data(), bytes.size());
    ASSERT_TRUE(stream_->wait_idle().ok());
    ASSERT_EQ(std::ranges::count(bytes, 0), static_cast<int64_t>(bytes.size()));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  Context context_;
  int opened_ = 0;
  Status open_status_;
  Library library_;
  std::deque<double> times_;
  std::vector<std::string> lines_;
};

TEST_F(AttentionChoice, OwnNeverLooksForALibrary) {
  CausalAttention attention = choose(AttentionKernel::kOwn);
  run(attention, 2, 10);
  EXPECT_EQ(opened_, 0);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(AttentionChoice, TheLibraryRunsWhereAskedForAndEachClassIsSaidOnce) {
  CausalAttention attention = choose(AttentionKernel::kCudnn);
  run(attention, 3, 10);
  run(attention, 4, 120);  // The same class.
  run(attention, 5, 129);
  EXPECT_EQ(opened_, 1);
  EXPECT_EQ(library_.run.size(), 3u);
  EXPECT_EQ(library_.planned.size(), 2u);
  EXPECT_THAT(lines_, ElementsAre("attention by cuDNN 1.2.3 (plain loops) for 2/1 heads of 64, up "
                                  "to 4 documents of up to 128 tokens",
                                  HasSubstr("up to 8 documents of up to 256 tokens")));
}

TEST_F(AttentionChoice, WithoutTheLibraryOurKernelRunsAndItIsSaidOnce) {
  open_status_ = not_found("cuDNN can't be loaded: libcudnn.so.9: cannot open");
  CausalAttention attention = choose(AttentionKernel::kCudnn);
  run(attention, 2, 10);
  run(attention, 2, 300);
  EXPECT_EQ(opened_, 1);
  EXPECT_THAT(lines_, ElementsAre("attention by Percheron's kernel: cuDNN can't be loaded: "
                                  "libcudnn.so.9: cannot open"));
}

TEST_F(AttentionChoice, ARefusedPlanIsSaidOnceWithTheLibrarysReason) {
  library_.plan_status = failed_precondition("heuristics: too odd");
  CausalAttention attention = choose(AttentionKernel::kFaster);
  run(attention, 2, 10);
  run(attention, 2, 10);
  EXPECT_EQ(library_.planned.size(), 1u);
  EXPECT_THAT(library_.run, IsEmpty());
  EXPECT_THAT(lines_,
              ElementsAre("attention by Percheron's kernel for 2/1 heads of 64, up to 2 documents "
                          "of up to 128 tokens: cuDNN 1.2.3 has no plan: heuristics: too odd"));
}

TEST_F(AttentionChoice, AFailingRunIsSaidAndOurKernelTakesOver) {
  library_.run_status = internal_error("execution failed");
  CausalAttention attention = choose(AttentionKernel::kCudnn);
  run(attention, 2, 10);
  run(attention, 2, 10);
  EXPECT_EQ(library_.run.size(), 1u);
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_THAT(lines_[1],
              HasSubstr("by Percheron's kernel for 2/1 heads of 64, up to 2 documents of "
                        "up to 128 tokens: execution failed"));
}

// The first run of each is not counted, of the others the fastest.
TEST_F(AttentionChoice, TheFasterOneIsMeasuredOncePerClass) {
  CausalAttention attention = choose(AttentionKernel::kFaster);
  times_ = {9, 3, 2, 3, 1, 4, 2.5, 4};
  run(attention, 2, 10);
  EXPECT_EQ(library_.run.size(), 5u) << "four timed, one for good";
  run(attention, 2, 10);
  EXPECT_EQ(library_.run.size(), 6u);
  times_ = {1, 3, 3, 3, 9, 4, 2.5, 4};
  run(attention, 2, 200);
  EXPECT_EQ(library_.run.size(), 10u);
  run(attention, 2, 200);
  EXPECT_EQ(library_.run.size(), 10u) << "ours is the faster one";
  EXPECT_THAT(lines_,
              ElementsAre(HasSubstr("attention by cuDNN 1.2.3 for 2/1 heads of 64, up to 2 "
                                    "documents of up to 128 tokens: cuDNN 1.2.3 takes 2.000 ms, "
                                    "Percheron's kernel 2.500 ms"),
                          HasSubstr("attention by Percheron's kernel for 2/1 heads of 64, up to 2 "
                                    "documents of up to 256 tokens: cuDNN 1.2.3 takes 3.000 ms")));
}

TEST_F(AttentionChoice, WhatCantBeMeasuredIsSaid) {
  CausalAttention attention = choose(AttentionKernel::kFaster);
  run(attention, 2, 10);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("can't be measured: the clock stands still")));
}

TEST_F(AttentionChoice, OperandsThatNoLibraryTakesAreSaidOnce) {
  CausalAttention attention = choose(AttentionKernel::kCudnn);
  run(attention, 2, 10, DType::kF32);
  run(attention, 3, 10, DType::kF32);
  EXPECT_EQ(opened_, 0);
  EXPECT_THAT(lines_, ElementsAre("attention by Percheron's kernel: the target does not compute in "
                                  "bf16"));
}

std::string load_refusal(const std::string& path) {
  const auto library = load_attention_library(path);
  return library.ok() ? "" : library.status().message();
}

TEST(AttentionLibrary, AMissingFileALibraryOfNobodyAndOneOfAnotherKindAreNamed) {
  EXPECT_EQ(load_refusal("/nowhere/libpercheron_cudnn.so"),
            "this build has no cuDNN attention, which would be /nowhere/libpercheron_cudnn.so");
  const std::string path = testing::TempDir() + "no_library_" + std::to_string(getpid()) + ".so";
  std::ofstream(path) << "no library at all, but long enough for the linker to look at it twice\n";
  EXPECT_THAT(load_refusal(path), HasSubstr("cuDNN can't be loaded: "));
  unlink(path.c_str());
  const std::string plugin = cuda_plugin_path();
  const std::string plugins = plugin.substr(0, plugin.rfind('/') + 1) + "test_plugins/";
  EXPECT_THAT(load_refusal(plugins + "libplugin_of_somebody.so"),
              HasSubstr("is of another build of percheron"));
  // As libpercheron_cudnn.so without libcudnn.so.9.
  EXPECT_THAT(load_refusal(plugins + "libplugin_without_symbol.so"),
              HasSubstr("percheron_defined_nowhere"));
}

}  // namespace
}  // namespace percheron::cuda

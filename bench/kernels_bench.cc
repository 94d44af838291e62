// Speed of the operations at the shapes of SmolLM2-135M. GFLOP/s count multiply and add; the rate
// of fused multiply-adds in registers (Peak) is the ceiling of the products.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "base/random.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace percheron {
namespace {

/// A device with everything that a benchmark needs.
class Bench {
 public:
  Bench() : device_(open()), stream_(device_->make_stream()), arena_(*device_) {
    device_->bind_thread();
  }

  TensorView take(DType dtype, std::initializer_list<int64_t> shape, double scale = 1) {
    const TensorView view = arena_.take(dtype, shape);
    for (int64_t i = 0; i < view.elements(); ++i) {
      const float value = static_cast<float>((random_.uniform() - 0.5) * scale);
      if (dtype == DType::kF32) view.as<float>()[i] = value;
      if (dtype == DType::kBf16) view.as<uint16_t>()[i] = bf16_from_float(value);
    }
    return view;
  }
  const Ops& ops() const { return device_->ops(); }
  Context& context() { return context_; }

 private:
  static std::unique_ptr<Device> open() {
    const char* threads = std::getenv("PERCHERON_BENCH_THREADS");
    auto device = open_device({}, {.threads = threads == nullptr ? 0 : std::atoi(threads)});
    PERCHERON_CHECK(device.ok(), device.status().message());
    return std::move(*device);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  Context context_{*device_, *stream_, arena_};
  Random random_{1};
};

void set_rate(benchmark::State& state, const char* name, double work) {
  state.counters[name] =
      benchmark::Counter(work * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

enum class Direction { kForward, kBackwardInput, kBackwardWeight };

void linear(benchmark::State& state, DType dtype, Direction direction) {
  Bench bench;
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const TensorView x = bench.take(dtype, {rows, in}), y = bench.take(dtype, {rows, out});
  const TensorView weight = bench.take(dtype, {out, in});
  const TensorView dweight = bench.take(DType::kF32, {out, in});
  const MatrixUse use =
      direction == Direction::kForward ? MatrixUse::kForward : MatrixUse::kBackward;
  const auto packed = bench.ops().make_packed(bench.context(), out, in, dtype, use);
  bench.ops().pack(bench.context(), weight, *packed);
  for (auto _ : state) {
    if (direction == Direction::kForward) {
      bench.ops().linear(bench.context(), x, *packed, ConstTensorView(), Write::kOverwrite, y);
    } else if (direction == Direction::kBackwardInput) {
      bench.ops().linear_backward_input(bench.context(), y, *packed, Write::kOverwrite, x);
    } else {
      bench.ops().linear_backward_weight(bench.context(), y, x, dweight);
    }
  }
  set_rate(state, "GFLOP/s", 2.0 * static_cast<double>(rows * in * out));
  set_rate(state, "weight_GB/s", static_cast<double>(weight.bytes()));
}
void shapes(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (const int64_t rows : {1, 5, 16, 128, 1024}) {
    for (const auto& [in, out] :
         {std::pair{576, 960}, {576, 576}, {576, 3072}, {1536, 576}, {576, 4096}}) {
      b->Args({rows, in, out});
    }
  }
  for (const int64_t rows : {1, 5, 256}) b->Args({rows, 576, 49152});
}
BENCHMARK_CAPTURE(linear, f32, DType::kF32, Direction::kForward)->Apply(shapes);
BENCHMARK_CAPTURE(linear, bf16, DType::kBf16, Direction::kForward)->Apply(shapes);
BENCHMARK_CAPTURE(linear, f32_backward_input, DType::kF32, Direction::kBackwardInput)
    ->Apply(shapes);
BENCHMARK_CAPTURE(linear, f32_backward_weight, DType::kF32, Direction::kBackwardWeight)
    ->Apply(shapes);
BENCHMARK_CAPTURE(linear, bf16_backward_weight, DType::kBf16, Direction::kBackwardWeight)
    ->Apply(shapes);

/// Few rows as a model decodes them: bf16 weights, activations in what the device multiplies.
void decoding(benchmark::State& state) {
  Bench bench;
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const bool native = bench.context().device.info().native_bf16;
  const DType dtype = native ? DType::kBf16 : DType::kF32;
  const TensorView x = bench.take(dtype, {rows, in}), y = bench.take(dtype, {rows, out});
  const TensorView weight = bench.take(DType::kBf16, {out, in});
  const auto packed =
      bench.ops().make_packed(bench.context(), out, in, DType::kBf16, MatrixUse::kForward);
  bench.ops().pack(bench.context(), weight, *packed);
  const DecodingScope scope(bench.context());
  for (auto _ : state) {
    bench.ops().linear(bench.context(), x, *packed, ConstTensorView(), Write::kOverwrite, y);
  }
  set_rate(state, "GFLOP/s", 2.0 * static_cast<double>(rows * in * out));
  set_rate(state, "weight_GB/s", static_cast<double>(weight.bytes()));
}
BENCHMARK(decoding)->Apply([](benchmark::internal::Benchmark* b) {
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (const int64_t rows : {1, 2, 4, 8}) {
    for (const auto& [in, out] : {std::pair{576, 3072}, {1536, 576}, {576, 49152}}) {
      b->Args({rows, in, out});
    }
  }
});

/// oneDNN's own single call by way of the optimizers' product.
void plain_matmul(benchmark::State& state) {
  Bench bench;
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const TensorView x = bench.take(DType::kF32, {rows, in}),
                   y = bench.take(DType::kF32, {rows, out});
  const TensorView weight = bench.take(DType::kF32, {out, in});
  for (auto _ : state) {
    bench.ops().matmul(bench.context(), 1, x, Ops::Transpose::kNo, weight, Ops::Transpose::kYes, 0,
                       y);
  }
  set_rate(state, "GFLOP/s", 2.0 * static_cast<double>(rows * in * out));
  set_rate(state, "weight_GB/s", static_cast<double>(weight.bytes()));
}
BENCHMARK(plain_matmul)->Apply(shapes);

/// The ceiling: twelve independent sums in registers per thread.
void peak(benchmark::State& state) {
  Bench bench;
  // One row of weights that stays in the first cache, read by many rows: as near as an operation
  // gets.
  const TensorView x = bench.take(DType::kF32, {96, 128}), y = bench.take(DType::kF32, {96, 16});
  const TensorView weight = bench.take(DType::kF32, {16, 128});
  const auto packed =
      bench.ops().make_packed(bench.context(), 16, 128, DType::kF32, MatrixUse::kForward);
  bench.ops().pack(bench.context(), weight, *packed);
  for (auto _ : state) {
    bench.ops().linear(bench.context(), x, *packed, ConstTensorView(), Write::kOverwrite, y);
  }
  set_rate(state, "GFLOP/s", 2.0 * 96 * 128 * 16);
}
BENCHMARK(peak)->UseRealTime();

/// Causal attention over `documents` packed documents of `length` tokens.
void attention(benchmark::State& state, DType dtype, bool backward) {
  Bench bench;
  const int64_t documents = state.range(0), length = state.range(1), rows = documents * length;
  const int64_t heads = 9, kv_heads = 3, d = 64;
  const TensorView q = bench.take(dtype, {rows, heads, d}),
                   out = bench.take(dtype, {rows, heads, d});
  const TensorView dout = bench.take(dtype, {rows, heads, d}),
                   dq = bench.take(dtype, {rows, heads, d});
  const TensorView k = bench.take(dtype, {rows, kv_heads, d}),
                   v = bench.take(dtype, {rows, kv_heads, d});
  const TensorView dk = bench.take(DType::kF32, {rows, kv_heads, d});
  const TensorView dv = bench.take(DType::kF32, {rows, kv_heads, d});
  const TensorView log_sum_exp = bench.take(DType::kF32, {rows, heads});
  const TensorView intervals = bench.take(DType::kI32, {rows, 4});
  for (int64_t r = 0; r < rows; ++r) {
    int32_t* interval = intervals.as<int32_t>() + 4 * r;
    interval[0] = static_cast<int32_t>(r / length * length);
    interval[1] = static_cast<int32_t>(r + 1);
    interval[2] = interval[3] = 0;
  }
  bench.ops().attention(bench.context(), q, k, v, intervals, 0.125f, out, log_sum_exp);
  for (auto _ : state) {
    if (backward) {
      bench.ops().attention_backward(bench.context(), dout, q, k, v, out, log_sum_exp, intervals,
                                     0.125f, dq, dk, dv);
    } else {
      bench.ops().attention(bench.context(), q, k, v, intervals, 0.125f, out, log_sum_exp);
    }
  }
  // Two products of the visible half forward, five backward.
  const double pairs = static_cast<double>(documents * length * (length + 1)) / 2;
  set_rate(state, "GFLOP/s", (backward ? 10.0 : 4.0) * pairs * heads * d);
}
void documents(benchmark::internal::Benchmark* b) {
  b->UseRealTime()
      ->Unit(benchmark::kMicrosecond)
      ->Args({1, 1024})
      ->Args({1, 2048})
      ->Args({8, 256})
      ->Args({20, 50});
}
BENCHMARK_CAPTURE(attention, f32, DType::kF32, false)->Apply(documents);
BENCHMARK_CAPTURE(attention, bf16, DType::kBf16, false)->Apply(documents);
BENCHMARK_CAPTURE(attention, f32_backward, DType::kF32, true)->Apply(documents);
BENCHMARK_CAPTURE(attention, bf16_backward, DType::kBf16, true)->Apply(documents);

/// One query row over a cache of `length` keys.
void decode_attention(benchmark::State& state, DType dtype) {
  Bench bench;
  const int64_t rows = state.range(0), length = state.range(1), heads = 9, kv_heads = 3, d = 64;
  const TensorView q = bench.take(dtype, {rows, heads, d}),
                   out = bench.take(dtype, {rows, heads, d});
  const TensorView k = bench.take(dtype, {rows * length, kv_heads, d});
  const TensorView v = bench.take(dtype, {rows * length, kv_heads, d});
  const TensorView intervals = bench.take(DType::kI32, {rows, 4});
  for (int64_t r = 0; r < rows; ++r) {
    int32_t* interval = intervals.as<int32_t>() + 4 * r;
    interval[0] = static_cast<int32_t>(r * length);
    interval[1] = static_cast<int32_t>((r + 1) * length);
    interval[2] = interval[3] = 0;
  }
  for (auto _ : state) {
    bench.ops().attention(bench.context(), q, k, v, intervals, 0.125f, out, TensorView());
  }
  set_rate(state, "GB/s", static_cast<double>(k.bytes() + v.bytes()));
}
BENCHMARK_CAPTURE(decode_attention, f32, DType::kF32)
    ->Args({1, 1024})
    ->Args({16, 1024})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decode_attention, bf16, DType::kBf16)
    ->Args({1, 1024})
    ->Args({16, 1024})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

/// Passes over activations; bytes are those read and written.
template <class F>
void pass(benchmark::State& state, size_t bytes, F&& work) {
  for (auto _ : state) work();
  set_rate(state, "GB/s", static_cast<double>(bytes));
}

void rms_norm(benchmark::State& state, DType dtype) {
  Bench bench;
  const TensorView x = bench.take(dtype, {1024, 576}), y = bench.take(dtype, {1024, 576});
  const TensorView weight = bench.take(DType::kF32, {576}), rms = bench.take(DType::kF32, {1024});
  pass(state, 2 * x.bytes(),
       [&] { bench.ops().rms_norm(bench.context(), x, weight, 1e-5f, y, rms); });
}
BENCHMARK_CAPTURE(rms_norm, f32, DType::kF32)->UseRealTime();
BENCHMARK_CAPTURE(rms_norm, bf16, DType::kBf16)->UseRealTime();

void swiglu(benchmark::State& state, DType dtype) {
  Bench bench;
  const TensorView x = bench.take(dtype, {1024, 3072}), y = bench.take(dtype, {1024, 1536});
  pass(state, x.bytes() + y.bytes(), [&] { bench.ops().swiglu(bench.context(), x, y); });
}
BENCHMARK_CAPTURE(swiglu, f32, DType::kF32)->UseRealTime();
BENCHMARK_CAPTURE(swiglu, bf16, DType::kBf16)->UseRealTime();

void cross_entropy(benchmark::State& state) {
  Bench bench;
  const int64_t rows = 256, vocabulary = state.range(0);
  const TensorView x = bench.take(DType::kF32, {rows, vocabulary}),
                   loss = bench.take(DType::kF32, {rows});
  const TensorView labels = bench.take(DType::kI32, {rows}),
                   weights = bench.take(DType::kF32, {rows});
  bench.ops().fill_zero(bench.context(), labels);
  pass(state, 2 * x.bytes(), [&] {
    bench.ops().cross_entropy(bench.context(), x, labels, weights, Gradient::kInPlace, loss,
                              TensorView());
  });
}
BENCHMARK(cross_entropy)->Arg(4096)->Arg(49152)->UseRealTime();

void teacher_loss(benchmark::State& state) {
  Bench bench;
  const int64_t rows = 256, vocabulary = state.range(1);
  const TensorView x = bench.take(DType::kF32, {rows, vocabulary}),
                   loss = bench.take(DType::kF32, {rows});
  const TensorView teacher = bench.take(DType::kF32, {rows, vocabulary}),
                   weights = bench.take(DType::kF32, {rows});
  pass(state, 3 * x.bytes(), [&] {
    bench.ops().teacher_loss(bench.context(), static_cast<TeacherLoss>(state.range(0)), x, teacher,
                             weights, Gradient::kInPlace, loss, TensorView(), TensorView());
  });
}
BENCHMARK(teacher_loss)->ArgsProduct({{1, 3, 7}, {4096}})->UseRealTime();

void adamw(benchmark::State& state) {
  Bench bench;
  const int64_t n = 10 << 20;
  const TensorView g = bench.take(DType::kF32, {n}), p = bench.take(DType::kF32, {n});
  const TensorView m = bench.take(DType::kF32, {n}), v = bench.take(DType::kF32, {n});
  const TensorView scale = bench.take(DType::kF32, {1});
  bench.ops().fill_zero(bench.context(), v);
  pass(state, 7 * g.bytes(), [&] {
    bench.ops().adamw(bench.context(), {1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f, 10}, scale, g, p, m, v);
  });
}
BENCHMARK(adamw)->UseRealTime();

void pack(benchmark::State& state) {
  Bench bench;
  const MatrixUse use = state.range(0) == 0 ? MatrixUse::kForward : MatrixUse::kBackward;
  const TensorView weight = bench.take(DType::kF32, {4096, 576});
  const auto packed = bench.ops().make_packed(bench.context(), 4096, 576, DType::kF32, use);
  pass(state, 2 * weight.bytes(), [&] { bench.ops().pack(bench.context(), weight, *packed); });
}
BENCHMARK(pack)->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace percheron

BENCHMARK_MAIN();

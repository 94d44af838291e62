// Times single operations on any device, one for each line of a file, and prints a line of JSON for
// each: {"line": 0, "ms": 1.25}. bench/cuda_roofline.py knows the operations of a training step,
// tools/device_check writes such a file of them.
//
//   linear forward|input|weight ROWS IN OUT
//   attention forward|backward HEADS KV_HEADS HEAD_DIM causal COUNT LENGTH
//   attention forward|backward HEADS KV_HEADS HEAD_DIM blocks ANCHORS SIZE LENGTH
//   rms_norm|swiglu forward|backward ROWS WIDTH
//   cross_entropy|teacher_loss ROWS VOCABULARY
//   squared_norm|adamw ELEMENTS
//
// Rows that don't fit are timed in part, and the time scaled: what a line says is the whole.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/measurement.h"
#include "kernels/ops.h"
#include "tools/engine.h"

namespace percheron {
namespace {

constexpr double kSeconds = 0.2;         // an operation is repeated
constexpr double kBytesMax = 1 << 30;    // of an operand that is cut
constexpr int64_t kNumberMax = 1 << 30;  // in a line

/// An operation that is ready to run, and how much of the line's work one run is.
struct Run {
  std::function<void()> work;
  double share = 1;
};

/// Makes the operands of one line, which live as long as it.
class Operands {
 public:
  Operands(Context& context, DType dtype) : context_(context), dtype_(dtype) {}

  Result<Run> make(const std::string& line) {
    std::istringstream words(line);
    std::string name, direction;
    words >> name;
    Result<Run> run = invalid_argument("no such operation");
    const bool directed =
        name == "linear" || name == "attention" || name == "rms_norm" || name == "swiglu";
    if (directed) words >> direction;
    const bool backward = direction == "backward";
    if (directed && !backward && direction != "forward" && name != "linear") return run;
    if (name == "linear") run = linear(direction, numbers<3>(words));
    if (name == "attention") run = attention(backward, words);
    if (name == "rms_norm") run = rms_norm(backward, numbers<2>(words));
    if (name == "swiglu") run = swiglu(backward, numbers<2>(words));
    if (name == "cross_entropy") run = loss(false, numbers<2>(words));
    if (name == "teacher_loss") run = loss(true, numbers<2>(words));
    if (name == "squared_norm") run = squared_norm(numbers<1>(words));
    if (name == "adamw") run = adamw(numbers<1>(words));
    if (!words) return invalid_argument("numbers are missing, or not from 1 to 2^30");
    return run;
  }

 private:
  /// The next numbers; a bad one fails `words`.
  template <size_t N>
  static std::array<int64_t, N> numbers(std::istringstream& words) {
    std::array<int64_t, N> result{};
    for (int64_t& number : result) {
      words >> number;
      if (number < 1 || number > kNumberMax) words.setstate(std::ios::failbit);
    }
    return result;
  }

  const Ops& ops() const { return context_.device.ops(); }

  /// Zeros: a product's time does not depend on its values on the devices that this is for.
  Result<TensorView> take(DType dtype, std::initializer_list<int64_t> shape) {
    PERCHERON_ASSIGN_OR_RETURN(Tensor tensor, context_.device.make_tensor(dtype, shape));
    const TensorView view = tensor.view();
    tensors_.push_back(std::move(tensor));
    ops().fill_zero(context_, view);
    return view;
  }

  Status upload(const void* values, TensorView view) {
    context_.device.copy_bytes(context_.stream, view.data(), values, view.bytes());
    return context_.stream.wait_idle();
  }

  /// How many of `rows` of so many bytes are timed.
  static int64_t fitting(int64_t rows, int64_t row_bytes) {
    const auto most = static_cast<int64_t>(kBytesMax / static_cast<double>(row_bytes));
    return std::clamp(most, int64_t{1}, rows);
  }
  static double share_of(int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
  }

  Result<Run> linear(const std::string& direction, const std::array<int64_t, 3>& shape) {
    const auto [rows, in, out] = shape;
    if (direction != "forward" && direction != "input" && direction != "weight") {
      return invalid_argument("linear is forward, input or weight");
    }
    const int64_t part = fitting(rows, 4 * std::max(in, out));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView x, take(dtype_, {part, in}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView y, take(dtype_, {part, out}));
    if (direction == "weight") {
      PERCHERON_ASSIGN_OR_RETURN(const TensorView gradient, take(DType::kF32, {out, in}));
      return Run{[=, this] { ops().linear_backward_weight(context_, y, x, gradient); },
                 share_of(part, rows)};
    }
    PERCHERON_ASSIGN_OR_RETURN(const TensorView weight, take(dtype_, {out, in}));
    const MatrixUse use = direction == "forward" ? MatrixUse::kForward : MatrixUse::kBackward;
    packed_ = ops().make_packed(context_, out, in, dtype_, use);
    ops().pack(context_, weight, *packed_);
    if (use == MatrixUse::kBackward) {
      return Run{
          [=, this] { ops().linear_backward_input(context_, y, *packed_, Write::kOverwrite, x); },
          share_of(part, rows)};
    }
    return Run{
        [=, this] { ops().linear(context_, x, *packed_, ConstTensorView(), Write::kOverwrite, y); },
        share_of(part, rows)};
  }

  /// Causal documents, or DFlash's blocks: a block sees the context before its anchor and itself.
  static std::vector<int32_t> causal(int64_t count, int64_t length) {
    std::vector<int32_t> intervals;
    for (int64_t row = 0; row < count * length; ++row) {
      const auto begin = static_cast<int32_t>(row / length * length);
      intervals.insert(intervals.end(), {begin, static_cast<int32_t>(row + 1), 0, 0});
    }
    return intervals;
  }
  static std::vector<int32_t> blocks(int64_t anchors, int64_t size, int64_t length) {
    std::vector<int32_t> intervals;
    for (int64_t row = 0; row < anchors * size; ++row) {
      const int64_t block = row / size;
      const auto own = static_cast<int32_t>(length + block * size);
      intervals.insert(intervals.end(), {0, static_cast<int32_t>(block * length / anchors), own,
                                         own + static_cast<int32_t>(size)});
    }
    return intervals;
  }

  Result<Run> attention(bool backward, std::istringstream& words) {
    const auto [heads, kv_heads, width] = numbers<3>(words);
    std::string mask;
    words >> mask;
    std::vector<int32_t> intervals;
    int64_t keys = 0;
    if (mask == "causal") {
      const auto [count, length] = numbers<2>(words);
      if (words) intervals = causal(count, length);
      keys = count * length;
    } else if (mask == "blocks") {
      const auto [anchors, size, length] = numbers<3>(words);
      if (words) intervals = blocks(anchors, size, length);
      keys = length + anchors * size;
    } else {
      return invalid_argument("attention's mask is causal or blocks");
    }
    if (!words) return Run{};
    const auto rows = static_cast<int64_t>(intervals.size()) / 4;
    PERCHERON_ASSIGN_OR_RETURN(const TensorView visible, take(DType::kI32, {rows, 4}));
    PERCHERON_RETURN_IF_ERROR(upload(intervals.data(), visible));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView q, take(dtype_, {rows, heads, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView k, take(dtype_, {keys, kv_heads, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView v, take(dtype_, {keys, kv_heads, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView out, take(dtype_, {rows, heads, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView sums, take(DType::kF32, {rows, heads}));
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    const auto forward = [=, this] {
      ops().attention(context_, q, k, v, visible, scale, out, sums);
    };
    if (!backward) return Run{forward};
    PERCHERON_ASSIGN_OR_RETURN(const TensorView dout, take(dtype_, {rows, heads, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView dq, take(dtype_, {rows, heads, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView dk, take(DType::kF32, {keys, kv_heads, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView dv, take(DType::kF32, {keys, kv_heads, width}));
    forward();  // The sums that the backward pass reads.
    return Run{[=, this] {
      ops().attention_backward(context_, dout, q, k, v, out, sums, visible, scale, dq, dk, dv);
    }};
  }

  Result<Run> rms_norm(bool backward, const std::array<int64_t, 2>& shape) {
    const auto [rows, width] = shape;
    PERCHERON_ASSIGN_OR_RETURN(const TensorView x, take(dtype_, {rows, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView y, take(dtype_, {rows, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView weight, take(DType::kF32, {width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView rms, take(DType::kF32, {rows}));
    if (!backward) {
      return Run{[=, this] { ops().rms_norm(context_, x, weight, 1e-5f, y, rms); }};
    }
    PERCHERON_ASSIGN_OR_RETURN(const TensorView dx, take(dtype_, {rows, width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView dweight, take(DType::kF32, {width}));
    return Run{[=, this] {
      ops().rms_norm_backward(context_, y, x, weight, rms, Write::kOverwrite, dx, dweight);
    }};
  }

  Result<Run> swiglu(bool backward, const std::array<int64_t, 2>& shape) {
    const auto [rows, width] = shape;
    PERCHERON_ASSIGN_OR_RETURN(const TensorView gate_up, take(dtype_, {rows, 2 * width}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView out, take(dtype_, {rows, width}));
    if (!backward) return Run{[=, this] { ops().swiglu(context_, gate_up, out); }};
    PERCHERON_ASSIGN_OR_RETURN(const TensorView gradient, take(dtype_, {rows, 2 * width}));
    return Run{[=, this] { ops().swiglu_backward(context_, out, gate_up, gradient); }};
  }

  Result<Run> loss(bool with_teacher, const std::array<int64_t, 2>& shape) {
    const auto [rows, vocabulary] = shape;
    const int64_t part = fitting(rows, 4 * vocabulary);
    PERCHERON_ASSIGN_OR_RETURN(const TensorView logits, take(DType::kF32, {part, vocabulary}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView weights, take(DType::kF32, {part}));
    const std::vector<float> ones(static_cast<size_t>(part), 1.0f);  // Rows without are skipped.
    PERCHERON_RETURN_IF_ERROR(upload(ones.data(), weights));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView value, take(DType::kF32, {part}));
    if (with_teacher) {
      PERCHERON_ASSIGN_OR_RETURN(const TensorView teacher, take(DType::kF32, {part, vocabulary}));
      return Run{[=, this] {
                   ops().teacher_loss(context_, TeacherLoss::kSoftCrossEntropy, logits, teacher,
                                      weights, Gradient::kInPlace, value, TensorView(),
                                      TensorView());
                 },
                 share_of(part, rows)};
    }
    PERCHERON_ASSIGN_OR_RETURN(const TensorView labels, take(DType::kI32, {part}));
    return Run{[=, this] {
                 ops().cross_entropy(context_, logits, labels, weights, Gradient::kInPlace, value,
                                     TensorView());
               },
               share_of(part, rows)};
  }

  Result<Run> squared_norm(const std::array<int64_t, 1>& shape) {
    const int64_t part = fitting(shape[0], 4);
    PERCHERON_ASSIGN_OR_RETURN(const TensorView x, take(DType::kF32, {part}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView sum, take(DType::kF64, {1}));
    return Run{[=, this] { ops().squared_norm(context_, x, sum); }, share_of(part, shape[0])};
  }

  Result<Run> adamw(const std::array<int64_t, 1>& shape) {
    const int64_t part = fitting(shape[0], 4);
    PERCHERON_ASSIGN_OR_RETURN(const TensorView g, take(DType::kF32, {part}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView p, take(DType::kF32, {part}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView m, take(DType::kF32, {part}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView v, take(DType::kF32, {part}));
    PERCHERON_ASSIGN_OR_RETURN(const TensorView scale, take(DType::kF32, {1}));
    return Run{[=, this] {
                 ops().adamw(context_, {1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f, 10}, scale, g, p, m, v);
               },
               share_of(part, shape[0])};
  }

  Context& context_;
  const DType dtype_;
  std::vector<Tensor> tensors_;
  std::unique_ptr<PackedMatrix> packed_;
};

/// The median of runs after one that warms up, in milliseconds of the whole line.
Result<double> time_line(Context& context, DType dtype, const std::string& line) {
  Operands operands(context, dtype);
  PERCHERON_ASSIGN_OR_RETURN(const Run run, operands.make(line));
  const auto once = [&] {
    run.work();
    return context.stream.wait_idle();
  };
  PERCHERON_RETURN_IF_ERROR(once());
  PERCHERON_ASSIGN_OR_RETURN(Timings timings, time_runs({kSeconds, 3}, once));
  std::ranges::sort(timings.wall_seconds);
  return timings.wall_seconds[timings.wall_seconds.size() / 2] * 1e3 / run.share;
}

Status time_lines(const EngineOptions& options, const std::string& path) {
  PERCHERON_ASSIGN_OR_RETURN(const std::string text, system_files().read_text(path));
  PERCHERON_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::open(options));
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line); ++number) {
    const Result<double> ms = time_line(engine->context(), engine->dtype(), line);
    if (!ms.ok()) {
      return ms.status().with_context(fmt::format("{}:{}: '{}'", path, number + 1, line));
    }
    fmt::print("{}\n", nlohmann::ordered_json{{"line", number}, {"ms", *ms}}.dump());
    std::fflush(stdout);
  }
  return ok_status();
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) {
  CLI::App app{"Times single operations on a device, one for each line of a file."};
  percheron::EngineOptions options;
  percheron::add_engine_options(app, options);
  std::string path;
  app.add_option("file", path, "The operations, one a line; bench/device_bench.cc lists them")
      ->required();
  CLI11_PARSE(app, argc, argv);
  return percheron::exit_code(percheron::time_lines(options, path));
}

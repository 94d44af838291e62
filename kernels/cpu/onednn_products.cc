#include "kernels/cpu/onednn_products.h"

#include <compare>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <utility>

namespace percheron::cpu {
namespace {

using Memory = dnnl::memory;

Memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::kBf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
}

/// A matrix with the given strides of its rows and columns.
Memory::desc matrix(int64_t rows, int64_t columns, DType dtype, int64_t row_stride,
                    int64_t column_stride) {
  return {{rows, columns}, dnnl_type(dtype), {row_stride, column_stride}};
}
Memory::desc matrix_of(const ConstTensorView& x) {
  return matrix(x.dim(0), x.dim(1), x.dtype(), x.stride(0), 1);
}

struct Weight final : OneDnnWeight {
  MatrixUse use;
  int64_t depth, columns;
  Memory::desc layout;
  Buffer data;

  /// B [depth, columns] as a weight [out, in] lies whose rows are `stride` elements apart.
  Memory::desc plain_layout(DType dtype, int64_t stride) const {
    return use == MatrixUse::kForward ? matrix(depth, columns, dtype, 1, stride)
                                      : matrix(depth, columns, dtype, stride, 1);
  }
};

/// What tells one product's primitive from another's.
struct Key {
  int64_t rows, depth, columns;
  int64_t x_row_stride, x_column_stride, weight_stride, y_stride;
  DType y_dtype;
  Write write;
  bool has_bias, packed;
  auto operator<=>(const Key&) const = default;
};

struct Product {
  dnnl::matmul primitive;
  size_t scratch_bytes;
};

/// oneDNN reports by exceptions; what was asked for is legal, so that one is a bug.
template <class F>
auto checked(F&& call) {
  try {
    return call();
  } catch (const dnnl::error& error) {
    PERCHERON_CHECK(false, std::string("oneDNN: ") + error.what());
  }
}

}  // namespace

struct OneDnnProducts::State {
  DType dtype;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::mutex mutex;
  std::map<Key, Product> products;

  dnnl::matmul::primitive_desc describe(const Key& key, const Memory::desc& x,
                                        const Memory::desc& weight) const {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (key.write == Write::kAdd) {
      dnnl::post_ops sum;
      sum.append_sum(1.f);
      attributes.set_post_ops(sum);
    }
    const Memory::desc y = matrix(key.rows, key.columns, key.y_dtype, key.y_stride, 1);
    if (!key.has_bias) return {{x, weight, y}, attributes, engine};
    const Memory::desc bias = matrix(1, key.columns, DType::kF32, key.columns, 1);
    return {{x, weight, bias, y}, attributes, engine};
  }

  Product product_of(const Key& key, const Memory::desc& x, const Memory::desc& weight) {
    const std::lock_guard lock(mutex);
    auto found = products.find(key);
    if (found == products.end()) {
      const auto description = describe(key, x, weight);
      if (products.size() >= kPrimitivesMax) products.clear();
      found = products
                  .emplace(key, Product{dnnl::matmul(description),
                                        description.scratchpad_desc().get_size()})
                  .first;
    }
    return found->second;
  }

  void run(Context& context, const Key& key, const Memory::desc& x_layout, const void* x,
           const Memory::desc& weight_layout, const void* weight, const float* bias, void* y) {
    checked([&] {
      const Product product = product_of(key, x_layout, weight_layout);
      Arena::Scope scope(context.arena);
      const auto bytes = static_cast<int64_t>(product.scratch_bytes);
      void* scratch = context.arena.take(DType::kU8, {bytes}).data();
      const auto memory = [&](const Memory::desc& layout, const void* data) {
        return Memory(layout, engine, const_cast<void*>(data));
      };
      dnnl::stream stream(engine);
      std::unordered_map<int, Memory> arguments = {
          {DNNL_ARG_SRC, memory(x_layout, x)},
          {DNNL_ARG_WEIGHTS, memory(weight_layout, weight)},
          {DNNL_ARG_DST, memory(matrix(key.rows, key.columns, key.y_dtype, key.y_stride, 1), y)},
          {DNNL_ARG_SCRATCHPAD,
           memory({{bytes}, Memory::data_type::u8, Memory::format_tag::a}, scratch)}};
      if (bias != nullptr) {
        arguments.emplace(DNNL_ARG_BIAS,
                          memory(matrix(1, key.columns, DType::kF32, key.columns, 1), bias));
      }
      product.primitive.execute(stream, arguments);
      stream.wait();
    });
  }

  void reorder(const Memory::desc& from_layout, const void* from, const Memory::desc& to_layout,
               void* to) const {
    checked([&] {
      Memory source(from_layout, engine, const_cast<void*>(from));
      Memory target(to_layout, engine, to);
      dnnl::stream stream(engine);
      dnnl::reorder(source, target).execute(stream, source, target);
      stream.wait();
    });
  }

  /// A chunk of exactly the rows that x and y have.
  void run_chunk(Context& context, const ConstTensorView& x, const Weight& weight,
                 const float* bias, Write write, const TensorView& y) {
    const Key key{.rows = x.dim(0),
                  .depth = weight.depth,
                  .columns = weight.columns,
                  .x_row_stride = x.stride(0),
                  .x_column_stride = 1,
                  .weight_stride = 0,
                  .y_stride = y.stride(0),
                  .y_dtype = y.dtype(),
                  .write = write,
                  .has_bias = bias != nullptr,
                  .packed = true};
    run(context, key, matrix_of(x), x.data(), weight.layout, weight.data.data(), bias, y.data());
  }
};

OneDnnProducts::OneDnnProducts(DType dtype) : state_(std::make_unique<State>()) {
  state_->dtype = dtype;
}
OneDnnProducts::~OneDnnProducts() = default;

std::unique_ptr<OneDnnWeight> OneDnnProducts::make_weight(Context& context, int64_t out_features,
                                                          int64_t in_features, MatrixUse use) {
  auto weight = std::make_unique<Weight>();
  weight->use = use;
  weight->depth = use == MatrixUse::kForward ? in_features : out_features;
  weight->columns = use == MatrixUse::kForward ? out_features : in_features;
  const Memory::desc any({weight->depth, weight->columns}, dnnl_type(state_->dtype),
                         Memory::format_tag::any);
  const Key key{.rows = kChunkRows,
                .depth = weight->depth,
                .columns = weight->columns,
                .x_row_stride = weight->depth,
                .x_column_stride = 1,
                .weight_stride = 0,
                .y_stride = weight->columns,
                .y_dtype = state_->dtype,
                .write = Write::kOverwrite,
                .has_bias = false,
                .packed = true};
  try {
    const Memory::desc x = matrix(kChunkRows, weight->depth, state_->dtype, weight->depth, 1);
    weight->layout = state_->describe(key, x, any).weights_desc();
  } catch (const dnnl::error&) {
    return nullptr;
  }
  auto data = context.device.allocate(weight->layout.get_size());
  PERCHERON_CHECK(data.ok(), data.status().message());
  weight->data = std::move(*data);
  return weight;
}

void OneDnnProducts::pack(Context&, ConstTensorView weight, OneDnnWeight& packed) {
  auto& target = static_cast<Weight&>(packed);
  PERCHERON_CHECK(weight.dtype() == state_->dtype, "the weight has another dtype than the product");
  state_->reorder(target.plain_layout(weight.dtype(), weight.stride(0)), weight.data(),
                  target.layout, target.data.data());
}

void OneDnnProducts::unpack(const OneDnnWeight& packed, TensorView weight) {
  const auto& source = static_cast<const Weight&>(packed);
  PERCHERON_CHECK(weight.dtype() == state_->dtype, "the weight has another dtype than the product");
  state_->reorder(source.layout, source.data.data(),
                  source.plain_layout(weight.dtype(), weight.stride(0)), weight.data());
}

void OneDnnProducts::product(Context& context, ConstTensorView x, const OneDnnWeight& weight,
                             ConstTensorView bias, Write write, TensorView y) {
  const auto& w = static_cast<const Weight&>(weight);
  PERCHERON_CHECK(x.dtype() == state_->dtype, "the rows have another dtype than the product");
  const float* b = bias.present() ? bias.as<float>() : nullptr;
  const int64_t rows = x.dim(0);
  int64_t row = 0;
  for (; row + kChunkRows <= rows; row += kChunkRows) {
    state_->run_chunk(context, x.rows(row, row + kChunkRows), w, b, write,
                      y.rows(row, row + kChunkRows));
  }
  if (row == rows) return;
  // The last rows, filled up with zeros.
  Arena::Scope scope(context.arena);
  const Ops& ops = context.device.ops();
  const TensorView x_chunk = context.arena.take(x.dtype(), {kChunkRows, w.depth});
  const TensorView y_chunk = context.arena.take(y.dtype(), {kChunkRows, w.columns});
  ops.copy(context, x.rows(row, rows), x_chunk.rows(0, rows - row));
  ops.fill_zero(context, x_chunk.rows(rows - row, kChunkRows));
  if (write == Write::kAdd) {
    ops.copy(context, y.rows(row, rows), y_chunk.rows(0, rows - row));
    ops.fill_zero(context, y_chunk.rows(rows - row, kChunkRows));
  }
  state_->run_chunk(context, x_chunk, w, b, write, y_chunk);
  ops.copy(context, y_chunk.rows(0, rows - row), y.rows(row, rows));
}

void OneDnnProducts::weight_gradient(Context& context, ConstTensorView dy, ConstTensorView x,
                                     TensorView dweight) {
  const Key key{.rows = dy.dim(1),
                .depth = dy.dim(0),
                .columns = x.dim(1),
                .x_row_stride = 1,
                .x_column_stride = dy.stride(0),
                .weight_stride = x.stride(0),
                .y_stride = dweight.stride(0),
                .y_dtype = DType::kF32,
                .write = Write::kAdd,
                .has_bias = false,
                .packed = false};
  const Memory::desc transposed = matrix(dy.dim(1), dy.dim(0), dy.dtype(), 1, dy.stride(0));
  state_->run(context, key, transposed, dy.data(), matrix_of(x), x.data(), nullptr, dweight.data());
}

}  // namespace percheron::cpu

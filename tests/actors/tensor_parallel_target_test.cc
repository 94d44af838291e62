#include "actors/tensor_parallel_target.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "base/clock.h"
#include "base/random.h"
#include "data/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/capture_pipeline.h"
#include "tests/golden/tensors.h"
#include "tests/model/toy_model.h"

namespace percheron {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// Workers of the devices KIND:0 to KIND:size-1, and a target on them.
class Group {
 public:
  Group(DeviceKind kind, int size) {
    for (int i = 0; i < size; ++i) {
      auto worker = DeviceWorker::start({kind, i}, DeviceOptions{1}, system_clock());
      PERCHERON_CHECK(worker.ok(), worker.status().message());
      workers_.push_back(std::move(worker).value());
    }
  }
  ~Group() { drop(); }
  void drop() {
    target_.reset();
    for (const auto& worker : workers_) worker->stop();
  }

  Status load(const std::string& directory, const TargetOptions& options) {
    PERCHERON_ASSIGN_OR_RETURN(ModelConfig config, read_model_config(system_files(), directory));
    PERCHERON_ASSIGN_OR_RETURN(auto files,
                               open_target_files(system_files(), directory, std::move(config)));
    if (workers_.size() == 1) {
      return workers_[0]->run([&](Context& context) -> Status {
        PERCHERON_ASSIGN_OR_RETURN(target_, Target::load(files, context, options));
        return ok_status();
      });
    }
    std::vector<DeviceWorker*> workers;
    for (const auto& worker : workers_) workers.push_back(worker.get());
    PERCHERON_ASSIGN_OR_RETURN(target_, TensorParallelTarget::load(files, workers, options, {}));
    return ok_status();
  }
  void hold(std::unique_ptr<Target> target) { target_ = std::move(target); }

  DeviceWorker& worker(size_t rank) { return *workers_[rank]; }
  Target& target() { return *target_; }
  Status run(const std::function<Status(Context&)>& job) { return workers_[0]->run(job); }

 private:
  std::vector<std::unique_ptr<DeviceWorker>> workers_;
  std::unique_ptr<Target> target_;
};

/// What a target says of some rows.
struct Outputs {
  std::vector<float> captured, last, logits;
  std::vector<int32_t> top1;
};

template <class T>
std::vector<T> to_host(Context& context, ConstTensorView view) {
  std::vector<T> values(static_cast<size_t>(view.elements()));
  context.device.copy_bytes(context.stream, values.data(), view.data(), view.bytes());
  EXPECT_TRUE(context.stream.wait_idle().ok());
  return values;
}

Result<Outputs> outputs_of(Group& group, const PackedSequences& rows) {
  Outputs outputs;
  const Status status = group.run([&](Context& context) -> Status {
    Target& target = group.target();
    const Arena::Scope scope(context.arena);
    const int64_t count = static_cast<int64_t>(rows.token_ids.size());
    const int64_t hidden = target.config().hidden_size;
    const int64_t slots = static_cast<int64_t>(target.options().capture.size()) +
                          (target.options().capture_last ? 1 : 0);
    const TensorView captured = context.arena.take(DType::kF32, {count, slots, hidden});
    const TensorView last = context.arena.take(DType::kF32, {count, hidden});
    const TensorView logits = context.arena.take(DType::kF32, {count, target.config().vocab_size});
    const TensorView top1 = context.arena.take(DType::kI32, {count});
    PERCHERON_RETURN_IF_ERROR(target.forward(context, rows, nullptr, captured, last));
    target.logits(context, last, logits);
    target.top1(context, last, top1);
    outputs = {to_host<float>(context, captured), to_host<float>(context, last),
               to_host<float>(context, logits), to_host<int32_t>(context, top1)};
    return ok_status();
  });
  if (!status.ok()) return status;
  return outputs;
}

PackedSequences documents(std::initializer_list<int64_t> lengths, uint64_t seed) {
  PackedSequences rows;
  rows.offsets.push_back(0);
  for (const int64_t length : lengths) {
    const std::vector<int32_t> tokens = random_tokens(seed++, length, 97);
    rows.token_ids.insert(rows.token_ids.end(), tokens.begin(), tokens.end());
    rows.offsets.push_back(static_cast<int32_t>(rows.token_ids.size()));
  }
  return rows;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return 1e9;
  double largest = 0, scale = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
    scale = std::max(scale, std::abs(double{b[i]}));
  }
  return std::isfinite(largest) ? largest / scale : 1e9;
}

constexpr int kLayers = 4;
constexpr int kInner = 48;  // the longest sum

/// Toy targets of every family, each with what is its own.
std::map<std::string, json> families() {
  const json shape = {{"num_attention_heads", 8}, {"num_key_value_heads", 4}, {"head_dim", 8}};
  std::map<std::string, json> configs = {
      {"llama", {{"model_type", "llama"}, {"attention_bias", true}, {"mlp_bias", true}}},
      {"mistral", {{"model_type", "mistral"}, {"sliding_window", 16}}},
      {"qwen2", {{"model_type", "qwen2"}, {"tie_word_embeddings", true}}},
      {"qwen3", {{"model_type", "qwen3"}}}};
  for (auto& [name, config] : configs) config.update(shape);
  configs["qwen2"].erase("head_dim");  // hidden / heads
  return configs;
}

class TensorParallelDevices : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!open_device({GetParam(), 0}, {}).ok()) GTEST_SKIP() << "no such device here";
  }
};

// The two differ in the order of sums: in f32 each of the 2 sums of a layer has at most kInner
// products, of which every one may round; where bf16 is multiplied, activations that straddle a
// rounding boundary move by 2^-8 of their size, at most once in each of a layer's 5 roundings.
TEST_P(TensorParallelDevices, EveryFamilyGivesTheStatesOfOneDevice) {
  for (const auto& [family, config] : families()) {
    const std::string directory = make_toy_model(3, config).write(fresh_directory(family));
    const PackedSequences rows = documents({23, 1, 40}, 5);
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      TargetOptions options = f32_options({0, 1, 2, 3, 4});
      options.compute_dtype = dtype;
      options.capture_last = true;
      Group whole(GetParam(), 1);
      ASSERT_TRUE(whole.load(directory, options).ok());
      const bool f32 = whole.target().compute_dtype() == DType::kF32;
      const double bound = f32 ? kLayers * 2 * kInner * 0x1p-24 : kLayers * 5 * 0x1p-8;
      const Result<Outputs> expected = outputs_of(whole, rows);
      ASSERT_TRUE(expected.ok()) << expected.status().message();
      for (const int size : {2, 4}) {
        SCOPED_TRACE(fmt::format("{} {} on {} devices", family, dtype_name(dtype), size));
        Group group(GetParam(), size);
        const Status loaded = group.load(directory, options);
        ASSERT_TRUE(loaded.ok()) << loaded.message();
        const Result<Outputs> actual = outputs_of(group, rows);
        ASSERT_TRUE(actual.ok()) << actual.status().message();
        const double states = difference(actual->captured, expected->captured);
        EXPECT_LE(states, bound);
        EXPECT_LE(difference(actual->last, expected->last), bound);
        EXPECT_LE(difference(actual->logits, expected->logits), 2 * bound);
        size_t agree = 0;
        for (size_t i = 0; i < actual->top1.size(); ++i) {
          agree += actual->top1[i] == expected->top1[i] ? 1 : 0;
        }
        fmt::print("{:<8} {} x{}: states differ by {:.2g} of {:.2g}, top-1 agrees on {} of {}\n",
                   family, dtype_name(dtype), size, states, bound, agree, actual->top1.size());
        EXPECT_GE(agree, f32 ? actual->top1.size() : actual->top1.size() * 9 / 10);
        // Sums are in rank order, whoever comes first.
        const Result<Outputs> again = outputs_of(group, rows);
        ASSERT_TRUE(again.ok());
        EXPECT_EQ(again->captured, actual->captured);
        EXPECT_EQ(again->top1, actual->top1);
      }
    }
  }
}

// Rank 0 copies the states of one pass while all ranks run the next.
TEST_P(TensorParallelDevices, TwoCapturesUnderWayHaveTheStatesOfOneAtATime) {
  const std::string directory =
      make_toy_model(3, families().at("qwen3")).write(fresh_directory("target"));
  Group group(GetParam(), 2);
  ASSERT_TRUE(group.load(directory, f32_options({0, 2, 4})).ok());
  CapturePipeline captures(group.target(), DType::kF32, Top1::kYes, 0);
  std::vector<CapturePipeline::Pending> pending;
  std::vector<PackedSequences> packs;
  for (const int64_t length : {40, 23}) {
    packs.push_back(documents({length, 5}, static_cast<uint64_t>(length)));
    MicroBatch batch;
    batch.token_ids.assign(packs.back().token_ids.begin(), packs.back().token_ids.end());
    batch.offsets = packs.back().offsets;
    batch.loss_mask.assign(batch.token_ids.size(), 1);
    batch.sample_ids = {1, 2};
    const Status begun = group.run([&](Context& context) -> Status {
      PERCHERON_ASSIGN_OR_RETURN(CapturePipeline::Pending put, captures.begin(context, batch));
      pending.push_back(std::move(put));
      return ok_status();
    });
    ASSERT_TRUE(begun.ok()) << begun.message();
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    const Result<Features> features = pending[i].finish();
    const Result<Outputs> expected = outputs_of(group, packs[i]);
    ASSERT_TRUE(features.ok() && expected.ok());
    const float* states = features->hidden_view().as<float>();
    EXPECT_EQ(std::vector<float>(states, states + expected->captured.size()), expected->captured);
    EXPECT_EQ(features->top1[0], expected->top1[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TensorParallelDevices,
                         testing::Values(DeviceKind::kCpu, DeviceKind::kEmulated),
                         [](const auto& kind) {
                           return std::string(kind.param == DeviceKind::kCpu ? "Cpu" : "Emulated");
                         });

// Scales are those of whole rows on every rank: were they a part's, states would differ by the
// steps of 8 bits, thousands of times this bound.
TEST(TensorParallelTarget, EightBitRanksHaveTheCodesOfOneDevice) {
  for (const auto& [family, config] : families()) {
    const std::string directory = make_toy_model(3, config).write(fresh_directory(family));
    const PackedSequences rows = documents({23, 1, 40}, 5);
    for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kFp8}) {
      SCOPED_TRACE(fmt::format("{} {}", family, weight_format_name(format)));
      TargetOptions options = f32_options({0, 1, 2, 3, 4});
      options.weights = format;
      Group whole(DeviceKind::kCpu, 1), group(DeviceKind::kCpu, 2);
      ASSERT_TRUE(whole.load(directory, options).ok());
      ASSERT_TRUE(group.load(directory, options).ok());
      const Result<Outputs> expected = outputs_of(whole, rows), actual = outputs_of(group, rows);
      ASSERT_TRUE(expected.ok() && actual.ok());
      EXPECT_LE(difference(actual->captured, expected->captured), kLayers * 2 * kInner * 0x1p-24);
      std::vector<WeightsComparison> comparisons;
      for (Group* each : {&whole, &group}) {
        ASSERT_TRUE(each->run([&](Context& context) -> Status {
                          PERCHERON_ASSIGN_OR_RETURN(comparisons.emplace_back(),
                                                     each->target().compare_weights(context, rows));
                          return ok_status();
                        })
                        .ok());
      }
      EXPECT_EQ(comparisons[1].tokens, 64);
      EXPECT_EQ(comparisons[1].same_top1, comparisons[0].same_top1);
      EXPECT_NEAR(comparisons[1].state_difference / comparisons[0].state_difference, 1, 0.01);
    }
  }
}

// A row's states don't depend on what else is in the pack (decisions: number 7), here too.
TEST(TensorParallelTarget, ADocumentHasTheSameBitsInEveryPack) {
  const std::string directory =
      make_toy_model(3, families().at("qwen3")).write(fresh_directory("target"));
  Group group(DeviceKind::kCpu, 2);
  ASSERT_TRUE(group.load(directory, f32_options({1, 4})).ok());
  const Result<Outputs> alone = outputs_of(group, documents({17}, 9));
  PackedSequences rows = documents({17, 600}, 9);
  const Result<Outputs> packed = outputs_of(group, rows);
  ASSERT_TRUE(alone.ok() && packed.ok());
  for (size_t i = 0; i < alone->captured.size(); ++i) {
    ASSERT_EQ(alone->captured[i], packed->captured[i]) << i;
  }
}

// What transformers computed, within the tolerance that one device must keep.
TEST(TensorParallelTarget, GoldenTargetsPassOnTwoDevices) {
  int targets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden_data/targets")) {
    const std::string directory = entry.path().string();
    SCOPED_TRACE(directory);
    if (!std::filesystem::exists(directory + "/expected.safetensors")) continue;
    ++targets;
    const auto file = SafetensorsFile::open(system_files(), directory + "/expected.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().message();
    const double tolerance = golden::metadata_number(*file, "tolerance_abs").value();
    const std::vector<int64_t> ids = golden::read_integers(*file, "input_ids").value();
    const std::vector<int64_t> owner = golden::read_integers(*file, "document_ids").value();
    PackedSequences rows;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i == 0 || owner[i] != owner[i - 1]) rows.offsets.push_back(static_cast<int32_t>(i));
      rows.token_ids.push_back(static_cast<int32_t>(ids[i]));
    }
    rows.offsets.push_back(static_cast<int32_t>(ids.size()));
    const auto config = read_model_config(system_files(), directory);
    ASSERT_TRUE(config.ok());
    TargetOptions options = f32_options();
    for (int64_t k = 0; k <= config->num_hidden_layers; ++k) options.capture.push_back(k);
    Group group(DeviceKind::kCpu, 2);
    ASSERT_TRUE(group.load(directory, options).ok());
    const Result<Outputs> actual = outputs_of(group, rows);
    ASSERT_TRUE(actual.ok()) << actual.status().message();
    const size_t hidden = static_cast<size_t>(config->hidden_size);
    const size_t slots = options.capture.size();
    for (size_t k = 0; k < slots; ++k) {
      std::vector<float> state;
      for (size_t row = 0; row < ids.size(); ++row) {
        const auto first =
            actual->captured.begin() + static_cast<std::ptrdiff_t>((row * slots + k) * hidden);
        state.insert(state.end(), first, first + static_cast<std::ptrdiff_t>(hidden));
      }
      const auto stored = golden::read_floats(*file, fmt::format("hidden.{}", k)).value();
      EXPECT_LE(golden::largest_difference(state, stored), tolerance) << "hidden." << k;
    }
    const auto logits = golden::read_floats(*file, "logits").value();
    EXPECT_LE(golden::largest_difference(actual->logits, logits), tolerance);
  }
  EXPECT_GE(targets, 3);
}

TEST(TensorParallelTarget, AllStatesAreThoseOfOneDeviceWithOrWithoutLayersInMemory) {
  const std::string directory =
      make_toy_model(3, families().at("llama")).write(fresh_directory("target"));
  const PackedSequences rows = documents({9, 5}, 1);
  const int32_t wanted[] = {0, 3, 13};
  std::vector<std::vector<float>> states;
  for (const int size : {1, 2}) {
    for (const bool layers : {true, false}) {
      TargetOptions options = f32_options({1});
      options.layers = layers;
      Group group(DeviceKind::kCpu, size);
      ASSERT_TRUE(group.load(directory, options).ok());
      ASSERT_TRUE(group
                      .run([&](Context& context) -> Status {
                        PERCHERON_ASSIGN_OR_RETURN(
                            states.emplace_back(),
                            group.target().all_states(context, rows, wanted));
                        return ok_status();
                      })
                      .ok());
    }
  }
  EXPECT_EQ(states[2], states[3]);
  EXPECT_LE(difference(states[2], states[0]), kLayers * 2 * kInner * 0x1p-24);
}

TEST(TensorParallelTarget, RefusesShapesThatDoNotDivideNamingThem) {
  const struct {
    json config;
    int size;
    const char* name;
  } cases[] = {
      {{{"num_attention_heads", 4}, {"num_key_value_heads", 4}}, 3, "num_attention_heads of 4"},
      {{{"num_attention_heads", 4}, {"num_key_value_heads", 2}}, 4, "num_key_value_heads of 2"},
      {{{"num_attention_heads", 4}, {"num_key_value_heads", 4}, {"intermediate_size", 50}},
       4,
       "intermediate_size of 50"}};
  int number = 0;
  for (const auto& [config, size, name] : cases) {
    const std::string directory =
        make_toy_model(1, config).write(fresh_directory(fmt::format("target_{}", number++)));
    Group group(DeviceKind::kCpu, size);
    const Status refused = group.load(directory, f32_options());
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(
        refused.message(),
        AllOf(HasSubstr(fmt::format("placement.tensor_parallel is {}", size)), HasSubstr(name)));
  }
}

TEST(TensorParallelTarget, RefusesACacheOfKeysAndValues) {
  const std::string directory =
      make_toy_model(3, families().at("llama")).write(fresh_directory("target"));
  Group group(DeviceKind::kCpu, 2);
  ASSERT_TRUE(group.load(directory, f32_options({1})).ok());
  const Status refused = group.run([&](Context& context) -> Status {
    PERCHERON_ASSIGN_OR_RETURN(
        const auto cache,
        KvCache::make(context.device, group.target().config(), 1, 32, DType::kF32));
    PackedSequences rows = documents({9}, 1);
    rows.cache_slots = {0};
    return group.target().forward(context, rows, cache.get(), {}, {});
  });
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("generate with a target on one device"));
  EXPECT_TRUE(outputs_of(group, documents({9}, 1)).ok()) << "the group goes on";
}

/// A rank whose passes fail from a given one on; else the rank itself.
class FailingRank final : public Target {
 public:
  FailingRank(std::unique_ptr<Target> target, int sound)
      : target_(std::move(target)), left_(sound) {}
  const ModelConfig& config() const override { return target_->config(); }
  const TargetOptions& options() const override { return target_->options(); }
  const std::string& weights_hash() const override { return target_->weights_hash(); }
  DType compute_dtype() const override { return target_->compute_dtype(); }
  Status load_layers(Context& context) override { return target_->load_layers(context); }
  Status forward(Context& context, const PackedSequences& rows, KvCache* cache, TensorView captured,
                 TensorView last) override {
    if (left_-- == 0) return internal_error("the device fell off the bus");
    return target_->forward(context, rows, cache, captured, last);
  }
  Result<std::shared_ptr<const void>> begin_forward(Context& context, const PackedSequences& rows,
                                                    TensorView captured, TensorView last,
                                                    const SlotWritten& written) override {
    if (left_-- == 0) return internal_error("the device fell off the bus");
    return target_->begin_forward(context, rows, captured, last, written);
  }
  Result<std::vector<float>> all_states(Context& context, const PackedSequences& rows,
                                        std::span<const int32_t> wanted) override {
    return target_->all_states(context, rows, wanted);
  }
  Result<WeightsComparison> compare_weights(Context& context,
                                            const PackedSequences& rows) override {
    return target_->compare_weights(context, rows);
  }
  void logits(Context& context, ConstTensorView last, TensorView logits) override {
    target_->logits(context, last, logits);
  }
  void top1(Context& context, ConstTensorView last, TensorView out) override {
    target_->top1(context, last, out);
  }
  ConstTensorView embedding() const override { return target_->embedding(); }
  ConstTensorView head() const override { return target_->head(); }
  ConstTensorView final_norm() const override { return target_->final_norm(); }
  Result<HostWeight> layer_weight(int64_t layer, const std::string& name) const override {
    return target_->layer_weight(layer, name);
  }

 private:
  std::unique_ptr<Target> target_;
  int left_;
};

/// A target on `group` whose rank `failing` fails in its second pass.
std::unique_ptr<Target> failing_target(Group& group, const std::string& directory, int size,
                                       int failing) {
  auto config = read_model_config(system_files(), directory).value();
  const auto files = open_target_files(system_files(), directory, config).value();
  const std::vector<DeviceId> devices(static_cast<size_t>(size), {DeviceKind::kCpu, 0});
  auto collectives = make_device_collectives(devices, {}).value();
  std::vector<TensorParallelTarget::Rank> ranks(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    TensorParallelTarget::Rank& place = ranks[static_cast<size_t>(rank)];
    place.worker = &group.worker(static_cast<size_t>(rank));
    place.collective = std::move(collectives[static_cast<size_t>(rank)]);
    TargetOptions options = f32_options({1, 4});
    options.shard = {rank, size, place.collective.get()};
    const Status loaded = place.worker->run([&](Context& context) -> Status {
      PERCHERON_ASSIGN_OR_RETURN(place.target, Target::load(files, context, options));
      return ok_status();
    });
    PERCHERON_CHECK(loaded.ok(), loaded.message());
    if (rank == failing) place.target = std::make_unique<FailingRank>(std::move(place.target), 1);
  }
  return std::make_unique<TensorParallelTarget>(std::move(ranks));
}

// Without the abort the others would wait in their first all-reduce for as long as the time-out.
TEST(TensorParallelTarget, ARankThatFailsEndsTheOthersWithItsError) {
  const std::string directory =
      make_toy_model(3, families().at("llama")).write(fresh_directory("target"));
  for (const int failing : {0, 1, 2, 3}) {
    SCOPED_TRACE(failing);
    Group group(DeviceKind::kCpu, 4);
    group.hold(failing_target(group, directory, 4, failing));
    const PackedSequences rows = documents({30}, 1);
    EXPECT_TRUE(outputs_of(group, rows).ok());
    const int64_t begin = system_clock().monotonic_ns();
    const auto failed = outputs_of(group, rows);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().code(), StatusCode::kInternal);
    EXPECT_EQ(failed.status().message(),
              fmt::format("rank {} of 4 (cpu:{}): the device fell off the bus", failing, failing));
    const auto later = outputs_of(group, rows);
    ASSERT_FALSE(later.ok());
    EXPECT_THAT(later.status().message(), HasSubstr("the device fell off the bus"));
    EXPECT_LT(static_cast<double>(system_clock().monotonic_ns() - begin) * 1e-9, 60);
  }
}

// A run that ends while a target waits for a rank's busy device.
TEST(TensorParallelTarget, APassWhoseOtherDeviceStopsIsCancelled) {
  const std::string directory =
      make_toy_model(3, families().at("llama")).write(fresh_directory("target"));
  Group group(DeviceKind::kCpu, 2);
  ASSERT_TRUE(group.load(directory, f32_options({1})).ok());
  group.worker(1).close();
  const auto outputs = outputs_of(group, documents({9}, 1));
  EXPECT_EQ(outputs.status().code(), StatusCode::kCancelled);
  EXPECT_THAT(outputs.status().message(), HasSubstr("rank 1 of 2 (cpu:1)"));
}

}  // namespace
}  // namespace percheron

#include "tools/run_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <functional>

namespace percheron {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const Result<proto::Run> run = parse_run_config(text, "run.yaml", overrides);
  return run.ok() ? "" : run.status().message();
}

TEST(RunConfig, ReadsSectionsListsEnumsAndUnits) {
  const Result<proto::Run> run = parse_run_config(
      "target: {path: models/m}\n"
      "drafter:\n  kind: dflash\n  capture: [2, 15, 27]\n  warm_start: [head, fc]\n"
      "features:\n  bytes_max: 512MiB\n"
      "optimizer: {learning_rate: 2e-3}\n",
      "run.yaml", {"train.steps=1600", "data.train=[a, b]", "drafter.freeze_head=true"});
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->target().path(), "models/m");
  EXPECT_EQ(run->drafter().kind(), proto::Drafter::DFLASH);
  EXPECT_EQ(run->drafter().capture_size(), 3);
  EXPECT_EQ(run->drafter().warm_start(1), proto::Drafter::FC);
  EXPECT_EQ(run->features().bytes_max(), 512u << 20);
  EXPECT_DOUBLE_EQ(run->optimizer().learning_rate(), 2e-3);
  EXPECT_EQ(run->train().steps(), 1600);
  EXPECT_EQ(run->data().train_size(), 2);
  EXPECT_TRUE(run->drafter().freeze_head());
}

TEST(RunConfig, AnUnknownKeyNamesThePlaceAndTheNearestKey) {
  EXPECT_EQ(error_of("train:\n  stpes: 3\n"),
            "run.yaml:2: unknown key 'train.stpes': did you mean 'train.steps'?");
  EXPECT_THAT(error_of("", {"drafter.kindd=eagle3"}), HasSubstr("did you mean 'drafter.kind'?"));
}

TEST(RunConfig, APeersSpellingIsAnErrorThatNamesOurs) {
  EXPECT_THAT(error_of("optimizer: {lr: 1}\n"), HasSubstr("here it is optimizer.learning_rate"));
  EXPECT_THAT(error_of("target_model_path: x\n"), HasSubstr("here it is target.path"));
  EXPECT_THAT(error_of("drafter: {target_layer_ids: [1]}\n"), HasSubstr("drafter.capture"));
}

TEST(RunConfig, AWrongValueNamesPlaceKeyAndWhatIsAllowed) {
  EXPECT_EQ(error_of("train:\n  steps: many\n"),
            "run.yaml:2: train.steps is 'many', but must be a whole number");
  EXPECT_THAT(error_of("drafter: {kind: medusa}\n"),
              HasSubstr("one of eagle3, dflash"));  // SpecForge#757
  EXPECT_THAT(error_of("features: {bytes_max: 12 parsecs}\n"),
              HasSubstr("a byte count such as 512MiB"));
  EXPECT_THAT(error_of("optimizer: {beta1: .inf}\n"), HasSubstr("finite"));
  EXPECT_THAT(error_of("train: [1]\n"), HasSubstr("must be a map"));
  EXPECT_THAT(error_of("train: {steps: [1]}\n"), HasSubstr("a single value"));
}

TEST(RunConfig, AKeyGivenTwiceIsAnError) {
  EXPECT_THAT(error_of("train:\n  steps: 1\n  steps: 2\n"),
              HasSubstr("train.steps is given twice"));
}

TEST(RunConfig, BrokenYamlIsOneErrorWithItsLine) {
  EXPECT_THAT(error_of("a: [1\nb: 2\n"), HasSubstr("run.yaml:"));
}

void each_field(const google::protobuf::Descriptor& message, const std::string& path,
                const std::function<void(const google::protobuf::FieldDescriptor&,
                                         const std::string&)>& visit) {
  for (int i = 0; i < message.field_count(); ++i) {
    const auto& field = *message.field(i);
    const std::string here = path.empty() ? field.name() : path + "." + field.name();
    if (field.message_type() != nullptr) {
      each_field(*field.message_type(), here, visit);
    } else {
      visit(field, here);
    }
  }
}

// speculators#297: a flag that can't be switched off.
TEST(RunConfig, EveryBooleanTakesTrueAndFalse) {
  each_field(*proto::Run::descriptor(), "", [](const auto& field, const std::string& path) {
    if (field.cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_BOOL) return;
    for (const std::string value : {"true", "false"}) {
      const Result<proto::Run> run = parse_run_config("", "run.yaml", {path + "=" + value});
      ASSERT_TRUE(run.ok()) << run.status().message();
      EXPECT_THAT(run_config_yaml(*run), HasSubstr(field.name() + ": " + value));
    }
  });
}

// One of them once took whole numbers alone.
TEST(RunConfig, EveryNumberOfBytesTakesAUnit) {
  int found = 0;
  each_field(*proto::Run::descriptor(), "", [&](const auto& field, const std::string& path) {
    const bool bytes = field.cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT64 &&
                       field.name().find("bytes") != std::string::npos;
    if (!bytes) return;
    ++found;
    const Result<proto::Run> run = parse_run_config("", "run.yaml", {path + "=1.5GiB"});
    EXPECT_TRUE(run.ok()) << run.status().message();
  });
  EXPECT_GE(found, 5);
}

TEST(RunConfig, WhatIsPrintedReadsBackTheSame) {
  const Result<proto::Run> run = parse_run_config(
      "drafter: {kind: dflash, warm_start: [head, layer], seed: 7}\noptimizer: {learning_rate: "
      "0.0006}\n",
      "run.yaml", {"data.train=[a b.safetensors]", "loss.kind=data_labels"});
  ASSERT_TRUE(run.ok());
  const Result<proto::Run> again = parse_run_config(run_config_yaml(*run), "printed", {});
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(run->SerializeAsString(), again->SerializeAsString());
}

}  // namespace
}  // namespace percheron

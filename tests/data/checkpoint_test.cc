#include "data/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/fault_file_system.h"

namespace percheron {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr const char* kOutput = "runs/demo";

class Checkpoint : public testing::Test {
 protected:
  // A drafter's weights that tell the step apart, a config and the state.
  Result<std::string> write(FileSystem& files, int64_t step, const std::string& output = kOutput) {
    values_.assign(64, static_cast<float>(step));
    const TensorFile tensors = {{{"w", view_of(std::span<const float>(values_))}}, {{"k", "v"}}};
    const CheckpointFile contents[] = {
        {"config.json", std::string("{}")},
        {"model.safetensors", tensors},
        {"training_state/optimizer.safetensors", tensors},
        {"training_state/training_state.textproto", "step: " + std::to_string(step)}};
    Fingerprint fingerprint;
    fingerprint.set("target_hash", "t");
    return write_checkpoint(files, output, step, contents, fingerprint);
  }
  Result<std::string> write(int64_t step) { return write(files_, step); }

  // What a start finds: cleans, then looks. The weights must be those of the step.
  int64_t recover(FileSystem& files) {
    const auto cleaned = clean_checkpoints(files, kOutput);
    EXPECT_TRUE(cleaned.ok()) << cleaned.status().message();
    const auto latest = find_latest(files, kOutput);
    EXPECT_TRUE(latest.ok()) << latest.status().message();
    if (!latest->checkpoint) return -1;
    const auto weights =
        SafetensorsFile::open(files, join_path(latest->checkpoint->path, "model.safetensors"));
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(weights->tensor("w")->as<float>()[63], static_cast<float>(latest->checkpoint->step));
    EXPECT_THAT(*files.list(kOutput), Each(Not(StartsWith(".")))) << "a leftover";
    return latest->checkpoint->step;
  }

  void corrupt(const std::string& path) {
    std::string bytes = *files_.read_text(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 4);
    ASSERT_TRUE(write_text_atomically(files_, path, bytes).ok());
  }

  FaultFileSystem files_;
  std::vector<float> values_;
};

TEST_F(Checkpoint, IsFoundWithItsStepAndFingerprint) {
  EXPECT_FALSE(find_latest(files_, kOutput)->checkpoint);
  ASSERT_TRUE(write(1200).ok());
  EXPECT_EQ(*files_.read_symlink("runs/demo/latest"), "step-00001200");
  const auto latest = find_latest(files_, kOutput);
  ASSERT_TRUE(latest.ok() && latest->checkpoint);
  EXPECT_EQ(latest->checkpoint->step, 1200);
  EXPECT_EQ(latest->checkpoint->path, "runs/demo/step-00001200");
  EXPECT_EQ(*latest->checkpoint->fingerprint.find("target_hash"), "t");
  EXPECT_THAT(latest->problems, IsEmpty());
  EXPECT_THAT(*files_.list("runs/demo/step-00001200"),
              ElementsAre("config.json", "manifest.json", "model.safetensors", "training_state"));
  EXPECT_TRUE(SafetensorsFile::open(files_, "runs/demo/latest/model.safetensors").ok());
}

TEST_F(Checkpoint, FallsBackToTheNewestCompleteOneAndSaysWhy) {
  for (const int64_t step : {1, 2, 3}) ASSERT_TRUE(write(step).ok());
  corrupt("runs/demo/step-00000003/training_state/optimizer.safetensors");
  auto latest = find_latest(files_, kOutput);
  ASSERT_TRUE(latest->checkpoint);
  EXPECT_EQ(latest->checkpoint->step, 2);
  ASSERT_EQ(latest->problems.size(), 1u);
  EXPECT_THAT(latest->problems[0], HasSubstr("step-00000003/training_state/optimizer"));
  ASSERT_TRUE(files_.remove_all("runs/demo/step-00000002/config.json").ok());
  latest = find_latest(files_, kOutput);
  EXPECT_EQ(latest->checkpoint->step, 1);
  EXPECT_EQ(latest->problems.size(), 2u);
  corrupt("runs/demo/step-00000001/manifest.json");
  latest = find_latest(files_, kOutput);
  EXPECT_FALSE(latest->checkpoint);
  EXPECT_EQ(latest->problems.size(), 3u);
}

TEST_F(Checkpoint, FollowsLatestWhereItPoints) {
  for (const int64_t step : {1, 2, 3}) ASSERT_TRUE(write(step).ok());
  ASSERT_TRUE(files_.replace_symlink("step-00000002", "runs/demo/latest").ok());
  EXPECT_EQ(find_latest(files_, kOutput)->checkpoint->step, 2);
  ASSERT_TRUE(files_.remove_all("runs/demo/latest").ok());
  const auto latest = find_latest(files_, kOutput);
  EXPECT_EQ(latest->checkpoint->step, 3);
  EXPECT_THAT(latest->problems[0], HasSubstr("latest is missing"));
}

TEST_F(Checkpoint, EveryManifestDamageIsNoticed) {
  ASSERT_TRUE(write(1).ok());
  const std::string path = "runs/demo/step-00000001/manifest.json";
  const std::string good = *files_.read_text(path);
  const Fingerprint fingerprint = verify_checkpoint(files_, "runs/demo/step-00000001")->fingerprint;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    ASSERT_TRUE(write_text_atomically(files_, path, bad).ok());
    const auto info = verify_checkpoint(files_, "runs/demo/step-00000001");
    // Only white space between tokens may change without a change of meaning.
    if (info.ok()) {
      EXPECT_TRUE(info->step == 1 && info->fingerprint == fingerprint) << i;
    }
  }
  for (size_t size = 0; size + 1 < good.size(); ++size) {
    ASSERT_TRUE(write_text_atomically(files_, path, good.substr(0, size)).ok());
    EXPECT_FALSE(verify_checkpoint(files_, "runs/demo/step-00000001").ok()) << size;
  }
}

TEST_F(Checkpoint, RotationKeepsTheNewestAndWhatLinksPointAt) {
  for (int64_t step = 1; step <= 6; ++step) ASSERT_TRUE(write(step).ok());
  ASSERT_TRUE(mark_best(files_, kOutput, 2).ok());
  const auto removed = remove_old_checkpoints(files_, kOutput, 2);
  ASSERT_TRUE(removed.ok()) << removed.status().message();
  EXPECT_THAT(*removed, ElementsAre("step-00000001", "step-00000003"));
  EXPECT_THAT(*files_.list(kOutput), ElementsAre("best", "latest", "step-00000002", "step-00000004",
                                                 "step-00000005", "step-00000006"));
  EXPECT_THAT(*remove_old_checkpoints(files_, kOutput, 2), IsEmpty());
  EXPECT_FALSE(remove_old_checkpoints(files_, kOutput, 0).ok());
  EXPECT_EQ(mark_best(files_, kOutput, 9).code(), StatusCode::kNotFound);
}

TEST_F(Checkpoint, AFullDiskKeepsThePreviousOneAndLeavesNothing) {  // speculators#509
  ASSERT_TRUE(write(1).ok());
  for (uint64_t bytes = 0;; bytes += 97) {
    files_.fill_disk_after(bytes);
    const auto path = write(2);
    files_.free_disk();
    if (path.ok()) {
      EXPECT_GT(bytes, 500u);
      break;
    }
    ASSERT_EQ(path.status().code(), StatusCode::kResourceExhausted) << bytes;
    EXPECT_THAT(path.status().message(), HasSubstr("step 2"));
    EXPECT_THAT(*files_.list(kOutput), ElementsAre("latest", "step-00000001"));
    EXPECT_EQ(find_latest(files_, kOutput)->checkpoint->step, 1);
    ASSERT_LT(bytes, 100000u);
  }
  EXPECT_EQ(recover(files_), 2);
}

TEST_F(Checkpoint, AnyFailingOperationLeavesALoadableLatest) {
  for (uint64_t nth = 1;; ++nth) {
    FaultFileSystem files;
    ASSERT_TRUE(write(files, 1).ok());
    files.fail_operation(nth, internal_error("injected"));
    const bool ok = write(files, 2).ok();
    files.fail_operation(1000000, internal_error("injected"));
    const int64_t found = recover(files);
    if (ok) {
      EXPECT_EQ(found, 2);
      EXPECT_GT(nth, 20u);
      break;
    }
    EXPECT_TRUE(found == 1 || found == 2) << nth;
    ASSERT_LT(nth, 500u);
  }
}

// A crash at every operation, in the worst and in random states of what reached the disk.
TEST_F(Checkpoint, LatestLoadsAfterACrashAtAnyOperation) {  // invariant 4
  for (const int64_t second : {2, 1}) {  // A new step, and one that replaces its predecessor.
    bool finished = false;
    for (uint64_t nth = 1; !finished; ++nth) {
      for (uint64_t seed = 0; seed < 6; ++seed) {
        FaultFileSystem files;
        ASSERT_TRUE(write(files, 1).ok());
        files.cut_power_at_operation(nth);
        bool ok = write(files, second).ok();
        if (ok) ok = remove_old_checkpoints(files, kOutput, 1).ok();
        if (seed == 0) {
          files.restart_keeping_synced();
        } else {
          files.restart_keeping_some(seed);
        }
        const int64_t found = recover(files);
        EXPECT_TRUE(found == 1 || found == second)
            << "operation " << nth << " seed " << seed << " found " << found;
        if (ok) {
          EXPECT_EQ(found, second);
        }
        finished = ok;
      }
      ASSERT_LT(nth, 500u);
    }
  }
}

TEST_F(Checkpoint, CrashDuringTheFirstLeavesAnEmptyOutput) {
  bool finished = false;
  for (uint64_t nth = 1; !finished; ++nth) {
    FaultFileSystem files;
    files.cut_power_at_operation(nth);
    finished = write(files, 5).ok();
    files.restart_keeping_synced();
    ASSERT_TRUE(clean_checkpoints(files, kOutput).ok());
    const auto latest = find_latest(files, kOutput);
    ASSERT_TRUE(latest.ok());
    if (finished) {
      EXPECT_EQ(latest->checkpoint->step, 5);
    }
    ASSERT_LT(nth, 500u);
  }
}

TEST_F(Checkpoint, IsNotPublishedWhereItMayNotBe) {
  ASSERT_TRUE(write(1).ok());
  const CheckpointFile contents[] = {{"config.json", std::string("{}")}};
  const auto written = write_checkpoint(files_, kOutput, 2, contents, {},
                                        [] { return failed_precondition("another has the run"); });
  EXPECT_EQ(written.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(written.status().message(), HasSubstr("another has the run"));
  EXPECT_EQ(recover(files_), 1);
  EXPECT_FALSE(files_.exists(join_path(kOutput, step_directory_name(2))));
}

TEST_F(Checkpoint, RefusesNamesThatLeaveTheDirectory) {
  for (const std::string name :
       {"", "/etc/x", "../x", "a/../../x", "manifest.json", "a/", "a//b"}) {
    const CheckpointFile contents[] = {{name, std::string("x")}};
    const auto path = write_checkpoint(files_, kOutput, 1, contents, {});
    EXPECT_EQ(path.status().code(), StatusCode::kInvalidArgument) << name;
  }
  const CheckpointFile twice[] = {{"a", std::string("x")}, {"a", std::string("x")}};
  EXPECT_FALSE(write_checkpoint(files_, kOutput, 1, twice, {}).ok());
  EXPECT_THAT(*files_.list(kOutput), IsEmpty());
}

TEST_F(Checkpoint, WorksOnTheOperatingSystemsFiles) {
  FileSystem& files = system_files();
  const std::string output = testing::TempDir() + "percheron_checkpoint_test/deep/run";
  ASSERT_TRUE(files.remove_all(output).ok());
  for (const int64_t step : {1, 2, 3, 3}) {
    const auto path = write(files, step, output);
    ASSERT_TRUE(path.ok()) << path.status().message();
  }
  ASSERT_TRUE(mark_best(files, output, 1).ok());
  EXPECT_THAT(*remove_old_checkpoints(files, output, 1), IsEmpty());
  EXPECT_EQ(find_latest(files, output)->checkpoint->step, 3);
  EXPECT_EQ(*clean_checkpoints(files, output), 0);
  EXPECT_THAT(*files.list(output),
              ElementsAre("best", "latest", "step-00000001", "step-00000002", "step-00000003"));
  ASSERT_TRUE(files.remove_all(output).ok());
}

TEST_F(Checkpoint, OtherFilesOfTheOutputAreLeftAlone) {
  ASSERT_TRUE(write(1).ok());
  ASSERT_TRUE(write_text_atomically(files_, "runs/demo/.tmp-notes", "mine").ok());
  ASSERT_TRUE(write_text_atomically(files_, "runs/demo/step-notes", "mine").ok());
  ASSERT_TRUE(write_text_atomically(files_, "runs/demo/metrics.jsonl", "mine").ok());
  ASSERT_TRUE(files_.create_directories("runs/demo/.step-00000007.tmp-0").ok());
  EXPECT_EQ(*clean_checkpoints(files_, kOutput), 1);
  EXPECT_THAT(*files_.list(kOutput),
              ElementsAre(".tmp-notes", "latest", "metrics.jsonl", "step-00000001", "step-notes"));
  EXPECT_EQ(*clean_checkpoints(files_, "nowhere"), 0);
}

TEST_F(Checkpoint, WhatCannotBeReadNowIsNoDamage) {
  ASSERT_TRUE(write(1).ok());
  files_.fail_operation(3, resource_exhausted("too many open files"));  // the manifest
  const auto latest = find_latest(files_, kOutput);
  ASSERT_FALSE(latest.ok()) << "a run would begin anew";
  EXPECT_EQ(latest.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(find_latest(files_, kOutput)->checkpoint->step, 1);
}

TEST_F(Checkpoint, DamagedOnesCountAsHeld) {
  EXPECT_FALSE(*holds_checkpoints(files_, kOutput));
  ASSERT_TRUE(write(1).ok());
  corrupt("runs/demo/step-00000001/manifest.json");
  EXPECT_TRUE(*holds_checkpoints(files_, kOutput));
}

TEST_F(Checkpoint, BestIsRestoredOrForgotten) {
  for (const int64_t step : {1, 2}) ASSERT_TRUE(write(step).ok());
  ASSERT_TRUE(mark_best(files_, kOutput, 1).ok());
  EXPECT_TRUE(*restore_best(files_, kOutput, 2)) << "a crash came before the link";
  EXPECT_EQ(*files_.read_symlink("runs/demo/best"), "step-00000002");
  corrupt("runs/demo/step-00000002/model.safetensors");
  EXPECT_FALSE(*restore_best(files_, kOutput, 2));
  EXPECT_FALSE(files_.read_symlink("runs/demo/best").ok());
  ASSERT_TRUE(mark_best(files_, kOutput, 1).ok());
  EXPECT_FALSE(*restore_best(files_, kOutput, 7));
  EXPECT_EQ(*files_.read_symlink("runs/demo/best"), "step-00000001") << "another's link stays";
}

TEST_F(Checkpoint, BytesAreThoseOfAllFiles) {
  const auto path = write(1);
  ASSERT_TRUE(path.ok());
  uint64_t bytes = 0;
  for (const char* name :
       {"config.json", "model.safetensors", "training_state/optimizer.safetensors",
        "training_state/training_state.textproto"})
    bytes += *files_.file_size(join_path(*path, name));
  EXPECT_EQ(*checkpoint_bytes(files_, *path), bytes);
}

}  // namespace
}  // namespace percheron

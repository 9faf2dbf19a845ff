#include "runtime/train/checkpoint_writer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/engine/training_state.h"
#include "tests/runtime/checkpoint/full_disk_files.h"
#include "tests/runtime/checkpoint/held_files.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

class CheckpointWriterTest : public testing::Test {
 protected:
  // The state that a run trains on: the values of `seed`, whatever was copied before.
  void fetch(StateField field, const UnitLayout& unit, std::int64_t begin,
             std::span<float> out) const {
    RandomState(seed_).read(field, unit, begin, out);
    for (float& value : out) value += static_cast<float>(field == StateField::kMaster ? 0 : 1);
  }

  StateCopy copy() const {
    return {model_, [this](StateField field, const UnitLayout& unit, std::int64_t begin,
                           std::span<float> out) { fetch(field, unit, begin, out); }};
  }

  CheckpointWriter::Job job(std::int64_t step, FileSystem& disk) const {
    return {directory_.path(), {step, 10 * step, 1, 64, 1000}, model_, copy(), disk};
  }

  void expect_has_state(std::int64_t step, std::uint64_t seed) {
    Checkpoint checkpoint(directory_.path("checkpoint-" + std::to_string(step)));
    checkpoint.open(layout_);
    seed_ = seed;
    for (const UnitLayout& unit : layout_) {
      for (const StateField field : kStateFields) {
        std::vector<float> expected(static_cast<std::size_t>(unit.trained_end()));
        std::vector<float> got(expected.size());
        fetch(field, unit, 0, expected);
        checkpoint.read(field, unit, 0, got);
        EXPECT_EQ(got, expected) << unit.index;
      }
    }
  }

  TemporaryDirectory directory_;
  ModelConfig config_ = load_model_config("nano");
  std::vector<UnitLayout> layout_ = parameter_layout(config_);
  CheckpointedModel model_{config_, layout_, *update_rules().front()};
  std::uint64_t seed_ = 42;
};

TEST_F(CheckpointWriterTest, WritesTheStateOfItsStepWhileTheNextChangesIt) {
  HeldFiles disk;
  CheckpointWriter writer;
  writer.start(job(3, disk));
  seed_ = 43;
  EXPECT_FALSE(writer.poll().has_value()) << "it is not written, and nobody waits";
  EXPECT_FALSE(is_checkpoint(directory_.path("checkpoint-3")));
  disk.release();
  const std::optional<CheckpointWriter::Result> result = writer.wait();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->problem, nullptr);
  EXPECT_EQ(result->path, directory_.path("checkpoint-3"));
  EXPECT_FALSE(writer.poll().has_value()) << "told once";
  EXPECT_FALSE(writer.wait().has_value());
  expect_has_state(3, 42);
}

TEST_F(CheckpointWriterTest, IsPolledAndStartedAgain) {
  CheckpointWriter writer;
  for (const std::int64_t step : {1, 2, 3}) {
    seed_ = static_cast<std::uint64_t>(step);
    writer.start(job(step, system_files()));
    std::optional<CheckpointWriter::Result> result;
    while (!result) result = writer.poll();
    EXPECT_EQ(result->path, directory_.path("checkpoint-" + std::to_string(step)));
  }
  expect_has_state(1, 1);
  expect_has_state(3, 3);
}

TEST_F(CheckpointWriterTest, AFullDiskIsItsResult) {
  FullDiskFiles disk(directory_.path(), 1'000'000, false);
  CheckpointWriter writer;
  writer.start(job(3, disk));
  const std::optional<CheckpointWriter::Result> result = writer.wait();
  ASSERT_TRUE(result.has_value() && result->problem != nullptr);
  try {
    std::rethrow_exception(result->problem);
  } catch (const IoError& problem) {
    EXPECT_TRUE(is_full_disk(problem)) << problem.what();
  }
  EXPECT_TRUE(disk.list(directory_.path()).empty());
}

// As where a step fails while the checkpoint before it is written.
TEST_F(CheckpointWriterTest, ItsDestructorCompletesWhatWasBegun) {
  {
    CheckpointWriter().start(job(3, system_files()));
  }
  expect_has_state(3, 42);
}

TEST_F(CheckpointWriterTest, WhatCannotBeReadIsThrownBeforeAnythingIsWritten) {
  const auto fails = [](StateField, const UnitLayout&, std::int64_t, std::span<float>) {
    throw NotFinite("not a number", "");
  };
  EXPECT_THROW(StateCopy(model_, fails), NotFinite);
}

TEST_F(CheckpointWriterTest, TheCopysSizeIsThatOfWhatTrains) {
  const std::size_t all = StateCopy::size_bytes(model_);
  EXPECT_GT(all, 3 * sizeof(float) * 800'000U);
  EXPECT_LT(all, 3 * sizeof(float) * 810'000U);
}

}  // namespace
}  // namespace terrace

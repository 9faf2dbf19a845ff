#include "runtime/train/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "runtime/checkpoint/durable_file.h"
#include "runtime/engine/training_state.h"
#include "tests/runtime/checkpoint/full_disk_files.h"
#include "tests/runtime/checkpoint/held_files.h"
#include "tests/runtime/step/group_owners.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

class CheckpointWriterTest : public testing::Test {
 protected:
  // Reads the state of a run that is training: it always follows the present value of `seed_`, even
  // if part of the state has been copied before.
  void fetch(StateField field, const UnitLayout& unit, std::int64_t begin,
             std::span<float> out) const {
    RandomState(seed_).read(field, unit, begin, out);
    for (float& value : out) value += static_cast<float>(field == StateField::kMaster ? 0 : 1);
  }

  CheckpointWriter::Job job(std::int64_t step, FileSystem& disk) const {
    return {directory_.path(), {step, 10 * step, 1, 64, 1000}, model_, staging_bytes_, disk};
  }

  CheckpointWriter::SharedFetch fetch() const {
    return [this](StateField field, const UnitLayout& unit, std::int64_t begin,
                  std::span<float> out) { fetch(field, unit, begin, out); };
  }

  void expect_has_state(std::int64_t step, std::uint64_t seed) {
    Checkpoint checkpoint(directory_.path("checkpoint-" + std::to_string(step)));
    checkpoint.open(layout_);
    seed_ = seed;
    for (const UnitLayout& unit : layout_) {
      for (const StateField field : kStateFields) {
        std::vector<float> expected(static_cast<std::size_t>(unit.trained_count()));
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
  std::size_t staging_bytes_ = std::size_t{1} << 30;  // more than the whole state
  std::uint64_t seed_ = 42;
};

TEST_F(CheckpointWriterTest, WritesTheStateOfItsStepWhileTheNextChangesIt) {
  HeldFiles disk;
  CheckpointWriter writer;
  writer.start(job(3, disk), fetch());
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
    writer.start(job(step, system_files()), fetch());
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
  writer.start(job(3, disk), fetch());
  const std::optional<CheckpointWriter::Result> result = writer.wait();
  ASSERT_TRUE(result.has_value() && result->problem != nullptr);
  try {
    std::rethrow_exception(result->problem);
  } catch (const IoError& problem) {
    EXPECT_TRUE(is_full_disk(problem)) << problem.what();
  }
  EXPECT_TRUE(disk.list(directory_.path()).empty());
}

// This happens if a step fails while the checkpoint of an earlier step is being written.
TEST_F(CheckpointWriterTest, ItsDestructorCompletesWhatWasBegun) {
  {
    CheckpointWriter writer;
    writer.start(job(3, system_files()), fetch());
  }
  expect_has_state(3, 42);
}

TEST_F(CheckpointWriterTest, WhatCannotBeReadIsThrownAndLeavesNothing) {
  CheckpointWriter writer;
  const auto fails = [this](StateField field, const UnitLayout& unit, std::int64_t begin,
                            std::span<float> out) {
    if (unit.index > 0) throw NotFinite("not a number", "");
    fetch(field, unit, begin, out);
  };
  EXPECT_THROW(writer.start(job(3, system_files()), fails), NotFinite);
  EXPECT_FALSE(writer.poll().has_value()) << "it was thrown";
  EXPECT_TRUE(system_files().list(directory_.path()).empty());
}

// The steps change each unit as soon as the gate lets them. The drive is slow throughout the test.
TEST_F(CheckpointWriterTest, UnitsThatAreReadBesideTheStepsChangeOnlyBehindTheGate) {
  staging_bytes_ = 0;
  HeldFiles disk;
  const auto units = static_cast<std::int32_t>(layout_.size());
  std::vector<std::atomic<float>> steps(layout_.size());
  HomeGate gate(each_unit_one_group(units));
  CheckpointWriter writer;
  writer.start_beside(
      job(3, disk),
      [&](StateField, const UnitLayout& unit, std::int64_t, std::span<float> out) {
        std::ranges::fill(out, steps.at(static_cast<std::size_t>(unit.index)).load());
      },
      gate);
  EXPECT_FALSE(gate.is_open(units - 1)) << "two pieces are in memory, and the drive takes none";
  const std::jthread training([&] {
    for (std::int32_t unit = 0; unit < units; ++unit) {
      gate.pass(unit);
      steps.at(static_cast<std::size_t>(unit)) = 1;
    }
  });
  disk.release();
  const std::optional<CheckpointWriter::Result> result = writer.wait();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->path, directory_.path("checkpoint-3"));
  Checkpoint checkpoint(result->path);
  checkpoint.open(layout_);
  for (const UnitLayout& unit : layout_) {
    std::vector<float> got(static_cast<std::size_t>(unit.trained_count()), 1);
    checkpoint.read(StateField::kMaster, unit, 0, got);
    EXPECT_EQ(got, std::vector<float>(got.size())) << unit.index;
  }
}

TEST_F(CheckpointWriterTest, APieceThatCannotBeReadBesideTheStepsIsItsResultAndOpensTheGate) {
  const auto units = static_cast<std::int32_t>(layout_.size());
  HomeGate gate(each_unit_one_group(units));
  CheckpointWriter writer;
  writer.start_beside(
      job(3, system_files()),
      [](StateField, const UnitLayout&, std::int64_t, std::span<float>) {
        throw NotFinite("not a number", "");
      },
      gate);
  gate.pass(units - 1);
  const std::optional<CheckpointWriter::Result> result = writer.wait();
  ASSERT_TRUE(result.has_value() && result->problem != nullptr);
  EXPECT_TRUE(result->is_of_reading);
  EXPECT_THROW(std::rethrow_exception(result->problem), NotFinite);
  EXPECT_TRUE(system_files().list(directory_.path()).empty());
}

TEST_F(CheckpointWriterTest, AFullDiskOpensTheGate) {
  staging_bytes_ = 0;
  FullDiskFiles disk(directory_.path(), 1'000'000, false);
  const auto units = static_cast<std::int32_t>(layout_.size());
  HomeGate gate(each_unit_one_group(units));
  CheckpointWriter writer;
  writer.start_beside(job(3, disk), fetch(), gate);
  gate.pass(units - 1);
  const std::optional<CheckpointWriter::Result> result = writer.wait();
  ASSERT_TRUE(result.has_value() && result->problem != nullptr);
  EXPECT_FALSE(result->is_of_reading);
}

TEST_F(CheckpointWriterTest, UnitsAreWrittenInTheOrderAskedForAndListedInTheirs) {
  const auto last = static_cast<std::int32_t>(layout_.size()) - 1;
  model_.first_changed = {last, 1};
  std::vector<std::int64_t> order;
  const std::string path = write_checkpoint(
      directory_.path(), {1, 10, 1, 64, 1000}, model_,
      [&](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
        if (order.empty() || order.back() != unit.index) order.push_back(unit.index);
        fetch(field, unit, begin, out);
      });
  ASSERT_EQ(order.size(), layout_.size());
  EXPECT_EQ(order[0], last);
  EXPECT_EQ(order[1], 1);
  EXPECT_EQ(order[2], 0);
  expect_has_state(1, 42);
}

// There is enough memory for the whole state, and the drive accepts no data yet.
TEST_F(CheckpointWriterTest, TheStateIsReadAheadOfTheDriveOnlyWhereAStepWaits) {
  HeldFiles disk;
  const auto units = static_cast<std::int32_t>(layout_.size());
  std::atomic<int> pieces = 0;
  HomeGate gate(each_unit_one_group(units));
  CheckpointWriter writer;
  writer.start_beside(
      job(3, disk),
      [&](StateField field, const UnitLayout& unit, std::int64_t begin, std::span<float> out) {
        fetch(field, unit, begin, out);
        ++pieces;
        pieces.notify_all();
      },
      gate);
  for (int read = pieces; read < 2; read = pieces) pieces.wait(read);
  // A reader that did not wait for the drive would finish within this time.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(gate.is_open(units - 1));
  EXPECT_FALSE(gate.is_awaited());
  gate.pass(units - 1);
  EXPECT_TRUE(gate.is_awaited());
  EXPECT_FALSE(writer.poll().has_value()) << "the drive still takes nothing";
  disk.release();
  ASSERT_TRUE(writer.wait().has_value());
  expect_has_state(3, 42);
}

}  // namespace
}  // namespace terrace

#include "runtime/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "runtime/model/model_config.h"
#include "runtime/train/training_state.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 public:
  std::string save(std::int64_t step, std::uint64_t seed) {
    const RandomState state(seed);
    return write_checkpoint(
        directory_.path(), {step, 10 * step, seed, 64, 1000}, config_, layout_,
        [&state](StateField field, const UnitLayout& unit, std::int64_t begin,
                 std::span<float> out) { state.read(field, unit, begin, out); });
  }

  TemporaryDirectory directory_;
  ModelConfig config_ = load_model_config("nano");
  std::vector<UnitLayout> layout_ = parameter_layout(config_);
};

TEST_F(CheckpointTest, ReadsBackWhatWasWritten) {
  Checkpoint checkpoint(save(7, 42));
  EXPECT_EQ(checkpoint.progress().step, 7);
  EXPECT_EQ(checkpoint.progress().samples, 70);
  EXPECT_EQ(checkpoint.progress().seed, 42U);
  checkpoint.open(layout_);
  const RandomState expected_state(42);
  for (const UnitLayout& unit : layout_) {
    for (const StateField field : kStateFields) {
      std::vector<float> expected(static_cast<std::size_t>(unit.padded_elements - 5));
      std::vector<float> got(expected.size());
      expected_state.read(field, unit, 5, expected);
      checkpoint.read(field, unit, 5, got);
      EXPECT_EQ(got, expected) << unit.index;
    }
  }
}

TEST_F(CheckpointTest, RefusesAnotherModel) {
  const std::string path = save(1, 1);
  ModelConfig other = config_;
  other.intermediate += 8;
  Checkpoint checkpoint(path);
  EXPECT_THROW(checkpoint.open(parameter_layout(other)), ConfigError);
}

TEST_F(CheckpointTest, ACrashInTheMiddleOfASaveIsCleared) {
  const std::string first = save(1, 1);
  const std::string second = save(2, 2);
  // Moved aside, and the new one not yet there: it comes back.
  fs::rename(second, second + ".old");
  fs::create_directory(directory_.path("checkpoint-3.writing"));
  fs::create_directory(directory_.path("checkpoint-1.old"));
  EXPECT_EQ(latest_checkpoint(directory_.path()), first);
  recover_run_directory(directory_.path());
  EXPECT_EQ(latest_checkpoint(directory_.path()), second);
  EXPECT_FALSE(directory_.has("checkpoint-3.writing"));
  EXPECT_FALSE(directory_.has("checkpoint-1.old"));
  Checkpoint checkpoint(second);
  checkpoint.open(layout_);
}

TEST_F(CheckpointTest, SavingAStepAgainReplacesIt) {
  save(3, 1);
  Checkpoint checkpoint(save(3, 9));
  EXPECT_EQ(checkpoint.progress().seed, 9U);
  checkpoint.open(layout_);
  EXPECT_FALSE(directory_.has("checkpoint-3.old"));
}

TEST_F(CheckpointTest, OldOnesAreRemovedUpToTheLatest) {
  for (const std::int64_t step : {5, 10, 15}) save(step, 1);
  remove_old_checkpoints(directory_.path(), 2);
  EXPECT_FALSE(directory_.has("checkpoint-5"));
  EXPECT_TRUE(directory_.has("checkpoint-10"));
  EXPECT_TRUE(directory_.has("checkpoint-15"));
}

}  // namespace
}  // namespace terrace

#include "runtime/train/run_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/runtime/checkpoint/held_files.h"
#include "tests/runtime/engine/ranks_fixture.h"
#include "tests/runtime/temporary_directory.h"
#include "tests/sanitized.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kCollectiveTimeout = std::chrono::seconds(2);

CheckpointProgress after(std::int64_t step) {
  return {.step = step, .samples = 10 * step, .seed = 1, .sequence_length = 24};
}

CheckpointProgress automatic(std::int64_t step) {
  CheckpointProgress progress = after(step);
  progress.is_automatic = true;
  return progress;
}

class KeptLines final : public TrainConsole {
 public:
  void opened(const std::string& /*run_dir*/) override {}
  void step(const StepProgress&) override {}
  void begin_phase(const std::string&) override {}
  void advance_phase(double) override {}
  void end_phase() override {}
  void say(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    lines_.push_back(text);
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

class KeptWarnings final : public Log {
 public:
  void info(std::string_view) override {}
  void warning(std::string_view line) override {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// A limit: as long as the object exists, the process can allocate hardly any more memory.
class NoMoreMemory {
 public:
  NoMoreMemory() {
    constexpr rlim_t kLeftBytes = 1 << 20;  // enough for files, but not for a copy of the state
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &usual_), 0);
    const rlimit little{pages * static_cast<rlim_t>(::getpagesize()) + kLeftBytes, usual_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
  }
  ~NoMoreMemory() { ::setrlimit(RLIMIT_AS, &usual_); }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;

 private:
  rlimit usual_{};
};

// Tests two ranks that save their parts into one run directory.
class RunSaverTest : public testing::Test {
 protected:
  static constexpr int kRanks = 2;

  // Calls `body` on every rank. Returns, for each rank, the error that `body` threw, or an empty
  // text.
  std::vector<std::string> on_ranks(const std::function<void(RunSaver& saver, int rank)>& body) {
    auto worlds = make_thread_communicators(kRanks, "world");
    auto saving = make_thread_communicators(kRanks, "saving", {.timeout = kCollectiveTimeout});
    std::vector<std::string> errors(kRanks);
    std::latch begun(kRanks);
    const auto save = [&](std::size_t r, const ModelRuntimeOptions& own) {
      const TierPlan plan = plan_model(own);
      ModelRuntime engine(own, plan, log_);
      engine.fill_state(RandomState(1));
      const RankGroup ranks(saving[r].get(), {.data = kRanks});
      RankedState state(engine.state(), plan.model, saving[r].get());
      RunSaver saver(run(), ranks, state, console_, log_);
      begun.arrive_and_wait();
      try {
        body(saver, static_cast<int>(r));
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
      disk_.release();
    };
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        as_rank(*worlds[r], options_, {.data = kRanks},
                [&](const ModelRuntimeOptions& own) { save(r, own); });
      });
    }
    threads.clear();
    return errors;
  }

  SavedRun run() {
    return {.directory = directory_.path(),
            .model = options_.model,
            .layout = layout_,
            .rule = *options_.optimizer.rule,
            .keep_last = keep_last_,
            .keep_automatic = keep_automatic_,
            .resumed_step = resumed_step_,
            .staging_bytes = std::size_t{1} << 30,
            .types = {},
            .base_model = {},
            .best = best_,
            .companions = {},
            .disk = disk_,
            .ranks_are_threads = true};
  }

  const TemporaryDirectory directory_;
  ModelRuntimeOptions options_ = tiny_options(tiny_model("llama", true, true), DType::kF32);
  const std::vector<UnitLayout> layout_ = parameter_layout(options_.model);
  const BestRecord best_{{}};
  std::int64_t keep_last_ = 0;
  std::int64_t keep_automatic_ = 0;
  std::int64_t resumed_step_ = 0;
  HeldFiles disk_;
  KeptLines console_;
  KeptWarnings log_;
};

// A slow drive must not look like a rank that has left: the rank that writes lets the waiting ranks
// know that it is still there.
TEST_F(RunSaverTest, AWriteMayTakeLongerThanRanksWaitForEachOther) {
  const std::vector<std::string> errors = on_ranks([this](RunSaver& saver, int rank) {
    saver.begin_save(after(3));
    EXPECT_FALSE(is_checkpoint(directory_.path("checkpoint-3"))) << "else this test tries nothing";
    const std::jthread drive([this, rank] {
      if (rank != 0) return;
      std::this_thread::sleep_for(2 * kCollectiveTimeout);
      disk_.release();
    });
    saver.save(after(3));
    EXPECT_TRUE(saver.has(3));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_TRUE(is_checkpoint(directory_.path("checkpoint-3")));
}

// The drive completes the checkpoint only after the other rank has ended.
TEST_F(RunSaverTest, AFailureIsToldToTheOthersBeforeTheCheckpointIsComplete) {
  const std::vector<std::string> errors = on_ranks([this](RunSaver& saver, int rank) {
    saver.begin_save(after(3));
    if (rank != 0) return saver.save(after(3));
    saver.complete_after(EnvironmentError("the drive of the step has failed", ""));
  });
  EXPECT_THAT(errors[1], HasSubstr("the drive of the step has failed"));
  EXPECT_TRUE(is_checkpoint(directory_.path("checkpoint-3")));
  EXPECT_THAT(console_.lines(), ElementsAre("saved " + directory_.path("checkpoint-3")));
  EXPECT_THAT(log_.lines(), IsEmpty());
}

TEST_F(RunSaverTest, AFailedRunSaysThatItsCheckpointIsNotSaved) {
  on_ranks([this](RunSaver& saver, int rank) {
    saver.begin_save(after(3));
    if (rank != 0) return saver.save(after(3));
    disk_.fail();
    saver.complete_after(EnvironmentError("the drive of the step has failed", ""));
  });
  EXPECT_FALSE(is_checkpoint(directory_.path("checkpoint-3")));
  EXPECT_THAT(console_.lines(), IsEmpty());
  EXPECT_THAT(log_.lines(), ElementsAre(HasSubstr("checkpoint-3 is not saved: ")));
}

// The host has less memory for the copy than it reported.
TEST_F(RunSaverTest, WhatIsWrittenAtOnceForWantOfMemoryLeavesNoMoreThanKeepLast) {
  if (kSanitized) GTEST_SKIP() << "the sanitizers need memory of their own";
  keep_last_ = 1;
  disk_.release();
  const std::vector<std::string> errors = on_ranks([this](RunSaver& saver, int rank) {
    saver.save(after(1));
    std::optional<NoMoreMemory> limit;
    if (rank == 0) limit.emplace();
    saver.begin_save(after(2));
    if (rank != 0) return;
    limit.reset();
    EXPECT_TRUE(is_checkpoint(directory_.path("checkpoint-2"))) << "it waits for it";
    EXPECT_FALSE(is_checkpoint(directory_.path("checkpoint-1")));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// The other rank answers reads only until the call returns, so nothing is left to be read then.
TEST_F(RunSaverTest, ACheckpointWithErrorsIsCompleteBeforeTheNextStep) {
  options_.zero_stage = 1;
  options_.wire = {.gradients = WireForm::kInt8, .keeps_errors = true};
  disk_.release();
  const std::vector<std::string> errors = on_ranks([this](RunSaver& saver, int rank) {
    saver.begin_save(after(3));
    if (rank == 0) {
      const Checkpoint checkpoint(directory_.path("checkpoint-3"));
      EXPECT_EQ(checkpoint.gradient_errors().value_or(GradientErrors()).data_ranks, kRanks);
    }
    saver.save(after(4));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_TRUE(is_checkpoint(directory_.path("checkpoint-4")));
  EXPECT_THAT(console_.lines(), ElementsAre("saved " + directory_.path("checkpoint-3"),
                                            "saved " + directory_.path("checkpoint-4")));
}

// Checkpoints that the user asked for are kept, and so is the automatic one that the run was told
// to resume from.
TEST_F(RunSaverTest, AutomaticCheckpointsAreKeptUpToTheirNumber) {
  disk_.release();
  keep_automatic_ = 2;
  resumed_step_ = 1;
  const std::vector<std::string> errors = on_ranks([](RunSaver& saver, int) {
    saver.save(automatic(1));
    saver.save(after(2));
    for (const std::int64_t step : {3, 4, 5}) saver.save(automatic(step));
    saver.save(after(6));
    saver.begin_save(automatic(7));
    saver.save(after(8));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_THAT(later_checkpoints(directory_.path(), 0),
              ElementsAre("checkpoint-1", "checkpoint-2", "checkpoint-5", "checkpoint-6",
                          "checkpoint-7", "checkpoint-8"));
}

// The steps do not wait for the drive.
TEST_F(RunSaverTest, AnAutomaticCheckpointIsPassedOverWhereAnotherIsBeingWritten) {
  const std::vector<std::string> errors = on_ranks([this](RunSaver& saver, int rank) {
    saver.begin_save(automatic(3));
    saver.begin_save(automatic(4));
    if (rank == 0) disk_.release();
    saver.save(after(5));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_THAT(later_checkpoints(directory_.path(), 0), ElementsAre("checkpoint-3", "checkpoint-5"));
}

// The user has not asked for this checkpoint, so the run continues without it.
TEST_F(RunSaverTest, AnAutomaticCheckpointThatCannotBeWrittenEndsNoRun) {
  const std::vector<std::string> errors = on_ranks([this](RunSaver& saver, int) {
    saver.begin_save(automatic(3));
    disk_.fail();
    disk_.release();
    saver.begin_save(after(3));
    EXPECT_FALSE(saver.has(3));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_THAT(log_.lines(), ElementsAre(HasSubstr("checkpoint-3 is not saved: ")));
}

}  // namespace
}  // namespace terrace

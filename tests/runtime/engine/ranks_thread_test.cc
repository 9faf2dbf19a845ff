#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <latch>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "offload/system_faults.h"
#include "tests/runtime/engine/ranks_fixture.h"

// Tests of the places where the threads of ranks meet, small enough for the sanitizers.
// ranks_test.cc compares bits.
namespace terrace {
namespace {

ModelRuntimeOptions options_for(std::int32_t micro_batches) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, true), DType::kF32);
  options.placement.micro_batches = micro_batches;
  options.chunk_elements = 8 * kBlockElements;
  return options;
}

void expect_one_curve(const RankedRun& run) {
  for (const Curve& curve : run.curves) EXPECT_EQ(curve, run.curves.front());
  EXPECT_EQ(run.curves.front().losses.size(), static_cast<std::size_t>(kSteps));
}

TEST(RankThreads, EveryStageTrains) {
  const ModelRuntimeOptions options = options_for(2);
  const RankedRun plain = train_ranks(options, 2, 0);
  expect_one_curve(plain);
  for (const std::int32_t stage : {1, 2, 3}) {
    const RankedRun run = train_ranks(options, 2, stage);
    expect_one_curve(run);
    EXPECT_EQ(run.state, plain.state) << stage;
  }
}

TEST(RankThreads, StagesOfAPipelineTrainWithTheirStateOnTheDrive) {
  const ModelRuntimeOptions options = options_for(3);
  const RankedRun plain = train_ranks(options, 2, 1);
  const TemporaryDirectory drive;
  ModelRuntimeOptions away = options;
  all_on(away, false, Tier::kNvme);
  away.nvme.directories = {{drive.path(), std::nullopt}};
  const RankedRun run = train_ranks(away, MeshShape{2, 1, 2}, 3);
  expect_one_curve(run);
  EXPECT_EQ(run.state, plain.state);
}

// Two tensor ranks in each of two stages: the lanes of exchanges and of messages are at work at the
// same time.
TEST(RankThreads, TensorRanksOfStagesTrainWithTheirStateOnTheDrive) {
  ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kF32);
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  const MeshShape shape = {1, 2, 2};
  const RankedRun plain = train_ranks(options, shape, 0);
  expect_one_curve(plain);
  const TemporaryDirectory drive;
  all_on(options, false, Tier::kNvme);
  options.placement.recompute = true;
  options.nvme.directories = {{drive.path(), std::nullopt}};
  const RankedRun away = train_ranks(options, shape, 0);
  expect_one_curve(away);
  EXPECT_EQ(away.state, plain.state);
}

// Every message lane of a stage is at work.
TEST(RankThreads, InterleavedStagesTrain) {
  ModelRuntimeOptions options = options_for(4);
  const RankedRun plain = train_ranks(options, 2, 1);
  options.pipeline_schedule = PipelineSchedule::kInterleaved;
  options.virtual_stages = 2;
  const RankedRun run = train_ranks(options, MeshShape{2, 1, 2}, 2);
  expect_one_curve(run);
  EXPECT_EQ(run.state, plain.state);
}

// Fails every write once begin() has been called.
class FailingWrites final : public SystemFaults {
 public:
  SystemFault fate_of(const SystemCall& call) noexcept override {
    if (!begun_ || call.kind != SystemCall::Kind::kWrite) return SystemFault::none(call);
    return {.asked_bytes = 0, .shown = -EIO};
  }
  void begin() { begun_ = true; }

 private:
  std::atomic<bool> begun_{false};
};

// Returns the error that each rank's training ends with. No rank gives up its step before all have
// failed. So a rank that waits for the others to come learns of the failure from the failed ranks
// themselves, and not from their behaviour after it.
std::vector<std::string> errors_on(std::vector<FailingWrites>& drives) {
  const auto count = static_cast<int>(drives.size());
  ModelRuntimeOptions options = options_for(2);
  options.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
  options.placement.has_nvme = true;
  options.zero_stage = 3;
  const TemporaryDirectory directory;
  options.nvme.directories = {{directory.path(), std::nullopt}};
  auto worlds = make_thread_communicators(count, "world", {.timeout = std::chrono::seconds(30)});
  std::vector<std::string> errors(drives.size());
  std::latch all_failed(count);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < drives.size(); ++r) {
    threads.emplace_back([&, r] {
      ModelRuntimeOptions of_rank = options;
      of_rank.nvme.faults = &drives[r];
      as_rank(*worlds[r], of_rank, {count, 1, 1}, [&](const ModelRuntimeOptions& own) {
        SilentLog log;
        const TierPlan plan = plan_model(own);
        ModelRuntime engine(own, plan, log);
        engine.fill_state(RandomState(1));
        if (r == 0) drives[r].begin();
        TrainedRun run;
        try {
          train_steps(engine, own, 1, 5, run);
        } catch (const std::exception& error) {
          errors[r] = error.what();
        }
        all_failed.arrive_and_wait();
      });
    });
  }
  threads.clear();
  return errors;
}

TEST(RankThreads, AFailureIsToldBeforeTheStepIsGivenUp) {
  std::vector<FailingWrites> drives(2);
  const std::vector<std::string> errors = errors_on(drives);
  EXPECT_NE(errors[0].find("slots.bin"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("was aborted: write of "), std::string::npos) << errors[1];
  EXPECT_NE(errors[1].find("slots.bin"), std::string::npos) << errors[1];
}

// The first step of a run writes nothing: its updates run during the second step.
TEST(RankThreads, ARankWhoseNextStepHasFailedKnowsWhy) {
  ModelRuntimeOptions options = options_for(2);
  options.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
  options.placement.has_nvme = true;
  options.zero_stage = 1;
  const TemporaryDirectory directory;
  options.nvme.directories = {{directory.path(), std::nullopt}};
  auto worlds = make_thread_communicators(2, "world", {.timeout = std::chrono::seconds(30)});
  FailingWrites drive;
  std::vector<std::jthread> threads;
  for (const auto& world : worlds) {
    threads.emplace_back([&] {
      ModelRuntimeOptions of_rank = options;
      if (world->rank() == 0) of_rank.nvme.faults = &drive;
      as_rank(*world, of_rank, {2, 1, 1}, [&](const ModelRuntimeOptions& own) {
        SilentLog log;
        const TierPlan plan = plan_model(own);
        ModelRuntime engine(own, plan, log);
        engine.fill_state(RandomState(1));
        EXPECT_NO_THROW(engine.rethrow_failure());
        if (world->rank() == 0) drive.begin();
        for (const std::int64_t step : {1, 2}) {
          const std::vector<std::int32_t> tokens = batch_of_step(own, step);
          engine.begin_step({step, tokens, 48, 1e-3});
        }
        while (!world->abort_reason()) std::this_thread::yield();
        if (world->rank() == 0) {
          EXPECT_EQ(engine.finish_step().report->step, 1);
          EXPECT_THROW(engine.rethrow_failure(), IoError);
        }
        EXPECT_ANY_THROW(while (engine.unfinished_steps() > 0) engine.finish_step());
      });
    });
  }
}

// Parameters that make every norm infinite.
class InfiniteParameters final : public StateSource {
 public:
  void read(StateField field, const UnitLayout& /*unit*/, std::int64_t /*begin*/,
            std::span<float> out) const override {
    const bool is_parameter = field == StateField::kMaster;
    std::ranges::fill(out, is_parameter ? std::numeric_limits<float>::infinity() : 0.0F);
  }
};

// Returns how the ranks of a mesh end if the norm of their first step is not a number.
std::vector<std::string> ends_of_infinite_norms(const ModelRuntimeOptions& options,
                                                const MeshShape& shape) {
  auto worlds =
      make_thread_communicators(shape.ranks(), "world", {.timeout = std::chrono::seconds(30)});
  std::vector<std::string> errors(worlds.size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < worlds.size(); ++r) {
    threads.emplace_back([&, r] {
      as_rank(*worlds[r], options, shape, [&](const ModelRuntimeOptions& own) {
        SilentLog log;
        const TierPlan plan = plan_model(own);
        ModelRuntime engine(own, plan, log);
        engine.fill_state(InfiniteParameters());
        TrainedRun run;
        try {
          train_steps(engine, own, 1, 5, run);
        } catch (const NotFinite& error) {
          errors[r] = error.what();
        } catch (const std::exception& error) {
          errors[r] = std::string("not that it is not finite: ") + error.what();
        }
      });
    });
  }
  threads.clear();
  for (const auto& world : worlds) EXPECT_EQ(world->abort_reason(), std::nullopt);
  return errors;
}

// Without clipping, ops between ranks are already under way when the norm is known: the ops that
// one rank has begun wait for ranks that had not come so far.
TEST(RankThreads, ANormThatIsNotANumberEndsAllRanksAlike) {
  ModelRuntimeOptions options = tiny_options(tiny_model("gpt2", true, false), DType::kF32);
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  options.optimizer.max_grad_norm = 0;
  const TemporaryDirectory drive;
  all_on(options, false, Tier::kNvme);
  options.nvme.directories = {{drive.path(), std::nullopt}};
  options.zero_stage = 3;
  for (const MeshShape& shape : {MeshShape{3, 1, 1}, MeshShape{2, 1, 2}, MeshShape{1, 2, 2}}) {
    const std::vector<std::string> errors = ends_of_infinite_norms(options, shape);
    for (const std::string& error : errors) {
      EXPECT_EQ(error, errors.front());
      EXPECT_NE(error.find("step 1: loss "), std::string::npos) << error;
    }
  }
}

}  // namespace
}  // namespace terrace

#include "runtime/train/rank_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/train/rank_limits.h"
#include "tests/runtime/engine/ranks_fixture.h"

// Ranks as threads, each of which plans for its own budgets and threads.
namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 2;

ModelRuntimeOptions zero_options(std::int32_t stage, const std::string& drive) {
  ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), DType::kBF16);
  options.zero_stage = stage;
  options.ranks.shape = {.data = kRanks};
  options.placement.micro_batches = 2;
  options.placement.order.reset();
  options.placement.recompute.reset();
  options.placement.has_nvme = true;
  options.placement.explains_refusal = false;
  options.nvme.directories = {{drive, std::nullopt}};
  return options;
}

std::optional<std::size_t>& host_budget(ModelRuntimeOptions& options) {
  return options.budgets.at(static_cast<std::size_t>(Tier::kHost));
}

// Calls `body` on a thread for each rank, with the options that have its communicators.
void on_ranks(const ModelRuntimeOptions& options,
              const std::function<void(ModelRuntimeOptions&, RankGroup&)>& body) {
  auto worlds = make_thread_communicators(kRanks, "world");
  std::vector<std::jthread> threads;
  for (const std::unique_ptr<Communicator>& world : worlds) {
    threads.emplace_back([&options, &body, &world] {
      RankGroup ranks(world.get(), {.data = kRanks});
      ModelRuntimeOptions own = options;
      own.ranks = ranks.steps();
      try {
        body(own, ranks);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        world->abort(error.what());
      }
    });
  }
}

// The training of a rank that plans for own limits.
struct OwnRun {
  TrainedRun run;
  std::vector<float> state;  // of the first rank alone
  std::vector<RankMemory> memory;
};

struct OwnLimits {
  std::size_t host_bytes = 0;
  int threads = 1;
};

std::vector<OwnRun> train_with(const ModelRuntimeOptions& options,
                               const std::vector<OwnLimits>& limits) {
  std::vector<OwnRun> runs(kRanks);
  on_ranks(options, [&](ModelRuntimeOptions& own, RankGroup& ranks) {
    const auto r = static_cast<std::size_t>(ranks.rank());
    host_budget(own) = limits.at(r).host_bytes;
    own.threads = limits.at(r).threads;
    const TierPlan plan = plan_for_ranks(own, ranks);
    check_plans_of_ranks(own, plan, ranks);
    SilentLog log;
    ModelRuntime engine(own, plan, log);
    engine.fill_state(RandomState(1234));
    runs[r].run.ledger = plan.ledger;
    train_steps(engine, own, 1, kSteps, runs[r].run);
    runs[r].run.evaluation = engine.evaluate(evaluation_batch(own, 1));
    runs[r].state = read_state(engine, own, *ranks.world());
    runs[r].memory = unequal_memory(own, plan, ranks);
  });
  return runs;
}

// Returns a budget that is a third of the memory in which nothing must go to the drive.
std::size_t third_of_peak(const ModelRuntimeOptions& options) {
  return plan_model(options).ledger[Tier::kHost].peak_bytes / 3;
}

class OwnBudgets : public testing::TestWithParam<std::int32_t> {};

TEST_P(OwnBudgets, KeepWhatFitsAndChangeNoBits) {
  const TemporaryDirectory drive;
  for (const double max_grad_norm : {1.6, 0.0}) {
    ModelRuntimeOptions options = zero_options(GetParam(), drive.path());
    options.optimizer.max_grad_norm = max_grad_norm;
    SCOPED_TRACE(fmt::format("max_grad_norm {}", max_grad_norm));
    const std::size_t small = third_of_peak(options);
    const auto both_small = train_with(options, {{small, 1}, {small, 1}});
    EXPECT_TRUE(both_small[0].memory.empty());
    for (const int larger : {0, 1}) {
      std::vector<OwnLimits> limits = {{small, 1}, {small, 1}};
      limits.at(static_cast<std::size_t>(larger)) = {4 * small, 2};
      const auto runs = train_with(options, limits);
      for (const OwnRun& run : runs) {
        EXPECT_EQ(run.run.curve, both_small[0].run.curve);
        ASSERT_EQ(run.memory.size(), 2U);
        EXPECT_EQ(memory_json(run.memory), memory_json(runs[0].memory));
      }
      EXPECT_EQ(runs[0].state, both_small[0].state);
      for (std::size_t r = 0; r < runs.size(); ++r) {
        EXPECT_EQ(runs[r].run.evaluation, both_small[r].run.evaluation);
      }
      const OwnRun& has_room = runs.at(static_cast<std::size_t>(larger));
      const OwnRun& has_none = runs.at(static_cast<std::size_t>(1 - larger));
      EXPECT_EQ(has_room.run.ledger[Tier::kNvme].peak_bytes, 0U);
      EXPECT_EQ(has_room.run.traffic.of(Lane::kRead), 0);
      EXPECT_GT(has_none.run.ledger[Tier::kNvme].peak_bytes, 0U);
      EXPECT_GT(has_none.run.traffic.of(Lane::kRead), 0);
      EXPECT_LE(has_none.run.ledger[Tier::kHost].peak_bytes, small);
      const RankMemory& told = runs[0].memory.at(static_cast<std::size_t>(1 - larger));
      EXPECT_EQ(told.peaks.at(static_cast<std::size_t>(Tier::kNvme)),
                has_none.run.ledger[Tier::kNvme].peak_bytes);
      EXPECT_GT(told.read_bytes, 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, OwnBudgets, testing::Values(0, 1, 2));

// Budgets that no rank shares with another one, over models and options.
TEST(RankPlans, HaveTheSameCollectivesWithAnyBudgets) {
  const TemporaryDirectory drive;
  std::mt19937 random(3);
  for (int round = 0; round < 12; ++round) {
    const bool tied = random() % 2 == 0;
    ModelRuntimeOptions options =
        zero_options(static_cast<std::int32_t>(random() % 3), drive.path());
    options.model = tiny_model(random() % 2 == 0 ? "llama" : "gpt2", tied, false);
    options.placement.micro_batches = 1 + static_cast<std::int32_t>(random() % 4);
    options.optimizer.max_grad_norm = random() % 2 == 0 ? 1.0 : 0.0;
    const std::size_t third = third_of_peak(options);
    const std::array<std::size_t, kRanks> budgets = {third + random() % (3 * third),
                                                     third + random() % (3 * third)};
    on_ranks(options, [&](ModelRuntimeOptions& own, RankGroup& ranks) {
      host_budget(own) = budgets.at(static_cast<std::size_t>(ranks.rank()));
      const TierPlan plan = plan_for_ranks(own, ranks);
      EXPECT_NO_THROW(check_plans_of_ranks(own, plan, ranks)) << round;
    });
  }
}

TEST(RankPlans, ThatDoNotMatchAreRefused) {
  ModelRuntimeOptions options = zero_options(1, "/");
  options.optimizer.max_grad_norm = 0;
  on_ranks(options, [](ModelRuntimeOptions& own, RankGroup& ranks) {
    own.placement.deferred_units = ranks.is_first() ? 1 : 5;
    const TierPlan plan = plan_model(own);
    try {
      check_plans_of_ranks(own, plan, ranks);
      ADD_FAILURE();
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the ranks compiled different steps"));
      if (ranks.is_first()) return;
      EXPECT_THAT(error.what(), HasSubstr("on rank 0: "));
      EXPECT_THAT(error.what(), HasSubstr("on rank 1: all_gather"));
    }
  });
}

// Every rank learns of it, so none waits for the rank that has no plan.
TEST(RankPlans, ThatDoNotFitTheTightestRankAreRefusedOnAll) {
  const TemporaryDirectory drive;
  on_ranks(zero_options(1, drive.path()), [](ModelRuntimeOptions& own, RankGroup& ranks) {
    host_budget(own) = ranks.is_first() ? kGiB : kMiB / 8;
    try {
      plan_for_ranks(own, ranks);
      ADD_FAILURE();
    } catch (const OutOfMemory& error) {
      const char* said = ranks.is_first() ? "does not fit on rank 1" : "host";
      EXPECT_THAT(error.what(), HasSubstr(said));
    }
  });
}

// Keeps what it is told.
class RecordingConsole final : public TrainConsole {
 public:
  void say(const std::string& text) override { said += text + '\n'; }
  void step(const StepProgress&) override {}
  void begin_phase(const std::string&) override {}
  void advance_phase(double) override {}
  void end_phase() override {}
  void opened(const std::string&) override {}

  std::string said;
};

// Agrees on the limits of ranks with 1 and 4 GiB, one and two threads.
std::string agree(std::int32_t stage, const TierOptions& tiers,
                  const std::function<void(const ModelRuntimeOptions&, int rank)>& look) {
  std::array<RecordingConsole, kRanks> consoles;
  on_ranks(zero_options(stage, "/"), [&](ModelRuntimeOptions& own, RankGroup& ranks) {
    TrainOptions options;
    options.run.dry_run = true;  // for another machine
    options.step.zero_stage = stage;
    options.tiers = tiers;
    MachineShare machine;
    machine.ranks_on_host = kRanks;
    host_budget(own) = ranks.is_first() ? kGiB : 4 * kGiB;
    own.threads = ranks.is_first() ? 1 : 2;
    const auto r = static_cast<std::size_t>(ranks.rank());
    agree_on_limits(options, machine, ranks, own, consoles.at(r));
    look(own, ranks.rank());
  });
  return consoles[0].said;
}

TEST(RankLimits, AreTheLeastWhereRanksMustHaveOneProgram) {
  TierOptions tiers;
  tiers.host_memory = kGiB;  // asked for, whatever it is
  const std::string said = agree(3, tiers, [](const ModelRuntimeOptions& own, int) {
    EXPECT_EQ(own.budgets.at(static_cast<std::size_t>(Tier::kHost)), kGiB);
    EXPECT_EQ(own.threads, 1);
  });
  EXPECT_THAT(said, HasSubstr("all plan for the least of them, because ranks of ZeRO stage 3"));
}

TEST(RankLimits, AreTheRanksOwnAtOtherStages) {
  TierOptions tiers;
  tiers.host_memory = kGiB;
  const std::string said = agree(2, tiers, [](const ModelRuntimeOptions& own, int rank) {
    EXPECT_EQ(own.budgets.at(static_cast<std::size_t>(Tier::kHost)), rank == 0 ? kGiB : 4 * kGiB);
    EXPECT_EQ(own.threads, rank + 1);
  });
  EXPECT_EQ(said, "");
}

// The stages of a pipeline may differ, and each rank plans the other stages with their budgets.
TEST(RankLimits, AreTheLeastOfEachPipelineStage) {
  const MeshShape shape = {.data = 2, .tensor = 1, .pipeline = 2};
  auto worlds = make_thread_communicators(shape.ranks(), "world");
  std::vector<std::jthread> threads;
  for (const std::unique_ptr<Communicator>& world : worlds) {
    threads.emplace_back([&] {
      RankGroup ranks(world.get(), shape);
      TrainOptions options;
      options.run.dry_run = true;
      options.tiers.host_memory = kGiB;
      MachineShare machine;
      machine.ranks_on_host = shape.ranks();
      ModelRuntimeOptions own = zero_options(1, "/");
      const auto rank = static_cast<std::size_t>(ranks.rank());
      host_budget(own) = (4 - rank) * kGiB;
      own.threads = ranks.rank() + 1;
      SilentConsole console;
      agree_on_limits(options, machine, ranks, own, console);
      const std::size_t stage = rank / 2;
      EXPECT_EQ(*host_budget(own), stage == 0 ? 3 * kGiB : kGiB);
      EXPECT_EQ(own.threads, stage == 0 ? 1 : 3);
      ModelRuntimeOptions other = options_of_stage(own, 1 - static_cast<int>(stage));
      EXPECT_EQ(*host_budget(other), stage == 0 ? kGiB : 3 * kGiB);
      EXPECT_EQ(other.ranks.position.pipeline, 1 - static_cast<int>(stage));
    });
  }
}

// Ranks of one host that were given no budget have found a little more or less of its memory free.
TEST(RankLimits, ThatAreDefaultsAreTheSameOnAHost) {
  agree(1, {}, [](const ModelRuntimeOptions& own, int) {
    EXPECT_EQ(own.budgets.at(static_cast<std::size_t>(Tier::kHost)), kGiB);
  });
}

TEST(RankLimits, OfEqualHostsMayDifferByALittle) {
  std::vector<RankLimits> ranks(3);
  EXPECT_FALSE(are_unequal(ranks));
  ranks[1].budgets[1] = 100;
  ranks[0].budgets[1] = ranks[2].budgets[1] = 104;
  EXPECT_FALSE(are_unequal(ranks));
  ranks[2].budgets[1] = 106;
  EXPECT_TRUE(are_unequal(ranks));
  ranks[2].budgets[1] = RankLimits::kNoBudget;
  EXPECT_TRUE(are_unequal(ranks));
  ranks[2].budgets[1] = 104;
  ranks[0].threads = 2;
  EXPECT_TRUE(are_unequal(ranks));
}

TEST(RankLimits, AreTold) {
  std::vector<RankMemory> ranks(2);
  for (RankMemory& rank : ranks) rank.limits.budgets.fill(RankLimits::kNoBudget);
  ranks[0].limits.budgets[1] = 4 * kGiB;
  ranks[0].limits.threads = 3;
  ranks[0].peaks = {0, 2 * kGiB, 0};
  ranks[1].limits.budgets[1] = kGiB;
  ranks[1].peaks = {0, kGiB, 512 * kMiB};
  ranks[1].read_bytes = 256 * kMiB;
  ranks[1].written_bytes = 128 * kMiB;
  const std::string text = describe_memory(ranks);
  EXPECT_THAT(text, testing::ContainsRegex("\n   0 +4.00 GiB +2.00 GiB +0 B +0 B +0 B +3\n"));
  EXPECT_THAT(text,
              testing::ContainsRegex("\n   1 +1.00 GiB +1.00 GiB +512 MiB +256 MiB +128 MiB +1$"));
  EXPECT_THAT(memory_json(ranks), HasSubstr("{\"threads\":3,\"memory\":[{\"name\":\"device\","
                                            "\"budget_bytes\":null,\"peak_bytes\":0}"));
  EXPECT_EQ(describe_memory({}), "");
  EXPECT_EQ(memory_json({}), "");
}

}  // namespace
}  // namespace terrace

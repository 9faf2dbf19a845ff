#include <gtest/gtest.h>

#include <thread>

#include "parallel/thread_communicator.h"
#include "runtime/train/ranked_state.h"
#include "tests/runtime/engine_fixture.h"

// Data-parallel ranks as threads: what ZeRO divides does not change bits, and it divides what it
// says.
namespace terrace {
namespace {

constexpr std::int64_t kSteps = 4;

// The state after training, as the first rank reads it.
struct RankedRun {
  TrainedRun run;  // the first rank's
  std::vector<Curve> curves;
  std::vector<double> evaluations;
  std::vector<float> state;
  double bytes_sent = 0;  // by the first rank, until the last drain
};

std::vector<float> read_state(Engine& engine, const EngineOptions& options) {
  const std::vector<UnitLayout> layout = parameter_layout(options.model);
  const EnginePlan plan = plan_engine(options);
  RankedState state(engine.state(), plan.model, options.ranks);
  std::vector<float> all;
  if (options.ranks != nullptr && options.ranks->rank() != 0) {
    state.serve_reads();
    return all;
  }
  for (const UnitLayout& unit : layout) {
    for (const StateField field : kStateFields) {
      std::vector<float> values(static_cast<std::size_t>(unit.elements));
      state.read(field, static_cast<std::int32_t>(unit.index), 0, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  state.end_reads();
  return all;
}

RankedRun train_ranks(const EngineOptions& options, int ranks, std::int32_t stage) {
  auto communicators = make_thread_communicators(ranks, "data parallel");
  RankedRun result;
  result.curves.resize(static_cast<std::size_t>(ranks));
  result.evaluations.resize(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      EngineOptions own = options;
      own.ranks = communicators[static_cast<std::size_t>(r)].get();
      own.zero_stage = stage;
      own.threads = 1;
      double sent = 0;
      std::vector<float> state;
      const TrainedRun run = train_tiny(own, kSteps, [&](Engine& engine) {
        sent = static_cast<double>(own.ranks->bytes_sent());
        state = read_state(engine, own);
      });
      result.curves[static_cast<std::size_t>(r)] = run.curve;
      result.evaluations[static_cast<std::size_t>(r)] = run.evaluation;
      if (r != 0) return;
      result.run = run;
      result.state = std::move(state);
      result.bytes_sent = sent;
    });
  }
  threads.clear();
  return result;
}

EngineOptions options_for(DType type, std::int32_t micro_batches = 2) {
  EngineOptions options = tiny_options(tiny_model(ModelFamily::kLlama, true, false), type);
  options.placement.micro_batches = micro_batches;
  options.chunk_elements = 8 * kBlockElements;
  return options;
}

struct Placed {
  const char* name;
  std::function<void(EngineOptions&)> set;
};

void all_on(EngineOptions& options, bool unified, Tier tier) {
  options.placement.unified = unified;
  options.placement.parameters = options.placement.gradients = options.placement.optimizer =
      options.placement.activations = tier;
  options.placement.has_nvme = tier == Tier::kNvme;
}

const std::vector<Placed>& placements() {
  static const std::vector<Placed> list = {
      {"unified", [](EngineOptions&) {}},
      {"unified_nvme", [](EngineOptions& o) { all_on(o, true, Tier::kNvme); }},
      {"device", [](EngineOptions& o) { all_on(o, false, Tier::kDevice); }},
      {"device_host", [](EngineOptions& o) { all_on(o, false, Tier::kHost); }},
      {"device_nvme", [](EngineOptions& o) { all_on(o, false, Tier::kNvme); }},
      {"optimizer_on_host",
       [](EngineOptions& o) {
         all_on(o, false, Tier::kDevice);
         o.placement.optimizer = Tier::kHost;
       }},
      {"parameters_on_host",
       [](EngineOptions& o) {
         all_on(o, false, Tier::kDevice);
         o.placement.parameters = Tier::kHost;
       }},
      {"optimizer_and_gradients_on_nvme",
       [](EngineOptions& o) {
         o.placement.optimizer = o.placement.gradients = Tier::kNvme;
         o.placement.has_nvme = true;
       }},
      {"layer_major", [](EngineOptions& o) { o.placement.order = MicroBatchOrder::kLayerMajor; }},
      {"recompute", [](EngineOptions& o) { o.placement.recompute = true; }},
  };
  return list;
}

using StageCase = std::tuple<int, DType, std::size_t>;

class ZeroStages : public testing::TestWithParam<StageCase> {};

// Every rank sees the same curve, and every stage the bits of stage 0 in the plain placement.
TEST_P(ZeroStages, HaveTheBitsOfStageZero) {
  const auto [ranks, type, placed] = GetParam();
  for (const double max_grad_norm : {1.6, 0.0}) {
    EngineOptions options = options_for(type);
    options.optimizer.max_grad_norm = max_grad_norm;
    const RankedRun plain = train_ranks(options, ranks, 0);
    const TemporaryDirectory drive;
    placements()[placed].set(options);
    if (options.placement.has_nvme) options.nvme.directories = {{drive.path(), std::nullopt}};
    for (const std::int32_t stage : {0, 1, 2, 3}) {
      const RankedRun run = train_ranks(options, ranks, stage);
      SCOPED_TRACE(fmt::format("stage {}, max_grad_norm {}", stage, max_grad_norm));
      for (const Curve& curve : run.curves) EXPECT_EQ(curve, plain.curves[0]);
      EXPECT_EQ(run.evaluations, plain.evaluations);
      EXPECT_EQ(run.state, plain.state);
    }
  }
}

// Steps that differ show that the comparison above compares something.
TEST(ZeroTraining, LearnsOnEveryRanksSamples) {
  const EngineOptions options = options_for(DType::kF32);
  const RankedRun two = train_ranks(options, 2, 3);
  EngineOptions alone = options;
  alone.placement.micro_batches = 4;
  const TrainedRun one = train_tiny(alone, kSteps);
  EXPECT_LT(two.curves[0].losses.back(), two.curves[0].losses.front());
  EXPECT_NE(two.curves[0], one.curve);  // added in another order
  for (std::size_t i = 0; i < one.curve.losses.size(); ++i) {
    EXPECT_NEAR(two.curves[0].losses[i], one.curve.losses[i], 1e-5 * one.curve.losses[i]);
    EXPECT_NEAR(two.curves[0].norms[i], one.curve.norms[i], 1e-4 * one.curve.norms[i]);
  }
}

// What communicators count is what the program says it sends.
TEST(ZeroTraining, SendsTheBytesOfItsProgram) {
  for (const std::int32_t stage : {0, 1, 2, 3}) {
    EngineOptions options = options_for(DType::kBF16, 1);
    options.evaluates = true;
    const RankedRun run = train_ranks(options, 2, stage);
    // The evaluation after the last step gathers once more with stage 3.
    const double told = run.run.traffic.of(Lane::kCollective);
    const double evaluation = stage == 3 ? static_cast<double>(run.state.size() / 3) * 2 / 2 : 0;
    EXPECT_GE(run.bytes_sent, told + evaluation);
    EXPECT_LE(run.bytes_sent, (told + evaluation) * 1.1);  // padding of small units
    if (stage != 3) {
      EXPECT_EQ(run.bytes_sent, told);
    }
  }
}

std::string name_of_case(const testing::TestParamInfo<StageCase>& info) {
  const auto [ranks, type, placed] = info.param;
  return fmt::format("{}_{}_ranks_{}", placements()[placed].name, ranks, name_of(type));
}

INSTANTIATE_TEST_SUITE_P(TwoRanks, ZeroStages,
                         testing::Combine(testing::Values(2),
                                          testing::Values(DType::kBF16, DType::kF32),
                                          testing::Range(std::size_t{0}, placements().size())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(ThreeRanks, ZeroStages,
                         testing::Combine(testing::Values(3), testing::Values(DType::kBF16),
                                          testing::Values(std::size_t{0}, std::size_t{4})),
                         name_of_case);

}  // namespace
}  // namespace terrace

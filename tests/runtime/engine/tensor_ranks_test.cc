#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>

#include "tests/runtime/engine/ranks_fixture.h"
#include "tests/runtime/engine/resumed_ranks.h"

// Tensor-parallel ranks as threads. They train as one rank does, within a bound. On one mesh
// nothing changes bits. The state that they leave is the state of one rank.
namespace terrace {
namespace {

constexpr auto kLlama = "llama";
constexpr auto kGpt2 = "gpt2";

#ifdef TERRACE_EVERY_STEP
constexpr std::int64_t kComparedSteps = 200;
#else
constexpr std::int64_t kComparedSteps = 8;
#endif

ModelRuntimeOptions options_for(std::string_view family, bool tied, DType type, bool odd = false) {
  ModelRuntimeOptions options = tiny_options(tiny_model(family, tied, odd), type);
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  return options;
}

// Random parameters, of which every second one is off by `place` of itself.
class OneUlpAway final : public StateSource {
 public:
  explicit OneUlpAway(float place) : place_(place) {}
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override {
    random_.read(field, unit, begin, out);
    for (std::size_t i = 0; i < out.size(); i += 2) out[i] *= 1 + place_;
  }

 private:
  RandomState random_{1234};
  const float place_;
};

// Returns the curve of one rank that starts from those: how far a rounding at one moment moves a
// curve. In a model with experts it is a rounding of the compute type, since it may give a row
// another expert, and a smaller one hardly ever does.
Curve curve_of_one_ulp(const ModelRuntimeOptions& options, std::int64_t steps) {
  Curve curve;
  const RankBody body = [&](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator&) {
    const bool has_experts = own.model.experts.count > 0;
    const bool is_bf16 = own.compute_type == DType::kBF16;
    engine.fill_state(OneUlpAway(has_experts && is_bf16 ? 0x1p-9F : 0x1p-23F));
    TrainedRun run;
    train_steps(engine, own, 1, steps, run);
    curve = run.curve;
  };
  on_ranks(options, {}, 0, body, [](TierPlan&) {});
  return curve;
}

// Returns the curve of the first rank, from random parameters.
Curve curve_of(
    const ModelRuntimeOptions& options, const MeshShape& shape, std::int64_t steps,
    const PlanChange& change = [](TierPlan&) {}) {
  Curve curve;
  const RankBody body = [&](ModelRuntime& engine, const ModelRuntimeOptions& own,
                            Communicator& world) {
    engine.fill_state(RandomState(1234));
    TrainedRun run;
    train_steps(engine, own, 1, steps, run);
    if (world.rank() == 0) curve = run.curve;
  };
  on_ranks(options, shape, 0, body, change);
  return curve;
}

Curve first_step(const Curve& curve) { return {{curve.losses.front()}, {curve.norms.front()}}; }

double mean(const std::vector<double>& values, std::size_t last) {
  return std::accumulate(values.end() - static_cast<std::ptrdiff_t>(last), values.end(), 0.0) /
         static_cast<double>(last);
}

struct TensorCase {
  const char* name;
  std::string_view family;
  bool tied;
  int ranks;
  bool shares_rows;
  bool odd;  // sizes that are no multiple of anything
};

class TensorRanks : public testing::TestWithParam<TensorCase> {};

// Sooner or later a rounding gives a row another expert. From then on runs differ by more than
// roundings, so models with experts are compared before.
std::int64_t compared_steps(const ModelConfig& model) {
  return model.experts.count > 0 ? 8 : kComparedSteps;
}

// docs/numerics.md gives the reasons for the bounds. If changing the initial parameters by one last
// place moves the curve of one rank by more than a third of a bound, the bound is three times that
// move.
TEST_P(TensorRanks, TrainAsOneRankDoes) {
  const TensorCase& tested = GetParam();
  for (const DType type : {DType::kF32, DType::kBF16}) {
    ModelRuntimeOptions options = options_for(tested.family, tested.tied, type, tested.odd);
    options.sequence_parallel = tested.shares_rows;
    const std::int64_t steps = compared_steps(options.model);
    const Curve one = curve_of(options, {}, steps);
    const Curve shared = curve_of(options, MeshShape{.tensor = tested.ranks}, steps);
    SCOPED_TRACE(name_of(type));
    const bool exact = type == DType::kF32;
    const Distance first = distance(first_step(shared), first_step(one));
    EXPECT_LT(first.loss, exact ? 1e-7 : 2e-4);
    EXPECT_LT(first.norm, exact ? 1e-6 : 1e-2);
    const Curve moved = curve_of_one_ulp(options, steps);
    const Distance all = distance(shared, one);
    const Distance of_ulp = distance(moved, one);
    EXPECT_LT(all.loss, std::max(exact ? 1e-5 : 3e-3, 3 * of_ulp.loss));
    if (exact) {
      EXPECT_LT(all.norm, std::max(1e-3, 3 * of_ulp.norm));
    }
    const std::size_t last = std::min<std::size_t>(shared.losses.size(), 20);
    const auto off = [&](const Curve& curve) {
      return std::abs(mean(curve.losses, last) / mean(one.losses, last) - 1);
    };
    EXPECT_LT(off(shared), std::max(exact ? 1e-6 : 1e-3, 3 * off(moved)));
    EXPECT_LT(shared.losses.back(), shared.losses.front());
  }
}

const TensorCase kTensorCases[] = {
    {"llama_tied", kLlama, true, 2, true, false},
    {"llama_untied_all_rows", kLlama, false, 2, false, false},
    {"gpt2_untied", kGpt2, false, 2, true, false},
    {"gpt2_tied_all_rows", kGpt2, true, 2, false, false},
    {"gpt2_on_four", kGpt2, true, 4, true, false},
    // The vocabulary has 131 rows: the last rank has 43 of 44.
    {"gpt2_odd_on_three", kGpt2, true, 3, true, true},
    {"qwen3_tied", "qwen3", true, 2, true, false},
    {"gemma2_tied_all_rows", "gemma2", true, 2, false, false},
    {"olmo2_untied", "olmo2", false, 2, true, false},
    {"mixtral_untied", "mixtral", false, 2, true, false},
    {"olmoe_tied_all_rows", "olmoe", true, 2, false, false},
    {"qwen3_moe_untied", "qwen3_moe", false, 2, true, false},
    {"qwen3_moe_tied_all_rows", "qwen3_moe", true, 2, false, false},
};

INSTANTIATE_TEST_SUITE_P(Shapes, TensorRanks, testing::ValuesIn(kTensorCases),
                         [](const testing::TestParamInfo<TensorCase>& info) {
                           return std::string(info.param.name);
                         });

#ifndef TERRACE_EVERY_STEP

struct Switch {
  const char* name;
  std::function<void(ModelRuntimeOptions&)> set;
};

const Switch kSwitches[] = {
    {"unified_nvme", [](ModelRuntimeOptions& o) { all_on(o, true, Tier::kNvme); }},
    {"device", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kDevice); }},
    {"device_host", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kHost); }},
    {"device_nvme", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kNvme); }},
    {"layer_major",
     [](ModelRuntimeOptions& o) { o.placement.order = MicroBatchOrder::kLayerMajor; }},
    {"recompute", [](ModelRuntimeOptions& o) { o.placement.recompute = true; }},
    {"groups_of_two",
     [](ModelRuntimeOptions& o) {
       if (o.model.experts.count == 0) return;
       o.experts_per_group = 2;
       o.placement.recompute = true;
       o.placement.order = MicroBatchOrder::kLayerMajor;
     }},
};

struct MeshCase {
  const char* name;
  MeshShape shape;
  std::string_view family;
  bool tied;
  bool shares_rows;
  double max_grad_norm;
};

class TensorMesh : public testing::TestWithParam<MeshCase> {};

TEST_P(TensorMesh, SwitchesDoNotChangeBits) {
  const MeshCase& mesh = GetParam();
  ModelRuntimeOptions options = options_for(mesh.family, mesh.tied, DType::kBF16);
  options.sequence_parallel = mesh.shares_rows;
  options.optimizer.max_grad_norm = mesh.max_grad_norm;
  const RankedRun plain = train_ranks(options, mesh.shape, 0);
  int number = 0;
  for (const Switch& one : kSwitches) {
    const std::int32_t stage = mesh.shape.data > 1 ? ++number % 4 : 0;
    ModelRuntimeOptions switched = options;
    one.set(switched);
    if (mesh.shape.pipeline > 1) switched.placement.order = options.placement.order;
    const TemporaryDirectory drive;
    if (switched.placement.has_nvme) switched.nvme.directories = {{drive.path(), std::nullopt}};
    const RankedRun run = train_ranks(switched, mesh.shape, stage);
    SCOPED_TRACE(fmt::format("{}, stage {}", one.name, stage));
    for (const Curve& curve : run.curves) EXPECT_EQ(curve, plain.curves[0]);
    EXPECT_EQ(run.evaluations, plain.evaluations);
    EXPECT_EQ(run.state, plain.state);
  }
}

const MeshCase kMeshCases[] = {
    {"two", {1, 2, 1}, kLlama, true, true, 1.6},
    {"two_all_rows", {1, 2, 1}, kGpt2, true, false, 0},
    {"two_by_two", {2, 2, 1}, kLlama, false, true, 0},
    {"two_by_two_all_rows", {2, 2, 1}, kLlama, true, false, 1.6},
    {"two_stages", {1, 2, 2}, kGpt2, true, true, 1.6},
    {"two_by_two_by_two", {2, 2, 2}, kLlama, true, true, 1.6},
    {"two_of_qwen3", {1, 2, 1}, "qwen3", true, false, 1.6},
    {"two_stages_of_gemma2", {1, 2, 2}, "gemma2", true, true, 1.6},
    {"two_of_olmo2", {1, 2, 1}, "olmo2", false, true, 1.6},
    {"two_of_mixtral", {1, 2, 1}, "mixtral", true, true, 1.6},
    {"two_of_olmoe", {1, 2, 1}, "olmoe", false, false, 0},
    {"two_by_two_of_qwen3_moe", {2, 2, 1}, "qwen3_moe", false, true, 1.6},
    {"two_stages_of_qwen3_moe", {1, 2, 2}, "qwen3_moe", true, false, 1.6},
};

INSTANTIATE_TEST_SUITE_P(Meshes, TensorMesh, testing::ValuesIn(kMeshCases),
                         [](const testing::TestParamInfo<MeshCase>& info) {
                           return std::string(info.param.name);
                         });

// Options that change bits (narrow gradients, reducing every micro-batch) change them in only one
// way. Interleaved pieces of a pipeline do not change them at all.
TEST(TensorMesh, GradientOptionsAndPiecesHaveBitsOfTheirOwn) {
  ModelRuntimeOptions options = options_for(kLlama, true, DType::kBF16);
  const MeshShape shape = {2, 2, 1};
  options.gradient_type = DType::kBF16;
  const RankedRun narrow = train_ranks(options, shape, 0);
  for (const std::int32_t stage : {1, 3}) {
    const RankedRun run = train_ranks(options, shape, stage);
    EXPECT_EQ(run.curves, narrow.curves);
    EXPECT_EQ(run.state, narrow.state);
  }
  options.gradient_type = DType::kF32;
  const RankedRun plain = train_ranks(options, shape, 2);
  EXPECT_NE(narrow.state, plain.state);
  ModelRuntimeOptions interleaved = options;
  interleaved.pipeline_schedule = PipelineSchedule::kInterleaved;
  interleaved.virtual_stages = 2;
  const RankedRun pieces = train_ranks(interleaved, MeshShape{2, 2, 2}, 2);
  EXPECT_EQ(pieces.curves.front(), plain.curves.front());
  EXPECT_EQ(pieces.state, plain.state);
  options.placement.reduces_micro_batches = true;
  const RankedRun reduced = train_ranks(options, shape, 2);
  EXPECT_EQ(train_ranks(options, shape, 3).state, reduced.state);
  EXPECT_LT(distance(reduced.curves[0], plain.curves[0]).loss, 1e-3);
  EXPECT_LT(distance(narrow.curves[0], plain.curves[0]).loss, 1e-3);
}

// Eight ranks, with all kinds of parallelism at once. Their state can be resumed on any mesh. There
// are four samples a step.
TEST(TensorState, IsThatOfOneRankOnEveryMesh) {
  for (const std::string_view family : {kLlama, kGpt2}) {
    ModelRuntimeOptions options = options_for(family, true, DType::kF32);
    options.placement.recompute = true;
    options.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
    options.placement.has_nvme = true;
    const TemporaryDirectory drive;
    options.nvme.directories = {{drive.path(), std::nullopt}};
    if (family == kGpt2) {  // one of them in interleaved pieces
      options.pipeline_schedule = PipelineSchedule::kInterleaved;
      options.virtual_stages = 2;
    }
    const MeshShape all = {2, 2, 2};
    const RankedRun begun = train_ranks(options, all, 3);
    const Resumed same = resume(options, all, 3, begun.state);
    EXPECT_EQ(same.state, begun.state);
    ModelRuntimeOptions elsewhere = options_for(family, true, DType::kF32);
    for (const auto& [shape, stage] :
         {std::pair{MeshShape{4, 1, 1}, 2}, {MeshShape{1, 1, 1}, 0}, {MeshShape{1, 4, 1}, 0}}) {
      if (family == kLlama && shape.tensor == 4) continue;  // it has two key-value heads
      elsewhere.placement.micro_batches = 4 / shape.data;
      const Resumed other = resume(elsewhere, shape, stage, begun.state);
      EXPECT_EQ(other.state, begun.state);
      EXPECT_LT(distance(other.curve, same.curve).loss, 1e-5);
      EXPECT_LT(distance(other.curve, same.curve).norm, 1e-3);
    }
  }
}

// A tensor rank begins with exactly its slice of the state that one rank begins with.
TEST(TensorState, BeginsAsThatOfOneRank) {
  const ModelRuntimeOptions options = options_for(kGpt2, false, DType::kBF16, true);
  const auto initial = [&](const MeshShape& shape) {
    std::vector<float> state;
    on_ranks(options, shape, 1,
             [&](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world) {
               engine.fill_state(RandomState(7));
               std::vector<float> read = read_state(engine, own, world);
               if (world.rank() == 0) state = std::move(read);
             });
    return state;
  };
  const std::vector<float> one = initial({});
  EXPECT_EQ(initial({1, 3, 1}), one);
  EXPECT_EQ(initial({2, 3, 1}), one);
}

// The elements that all tensor ranks hold have the same bits on each of them, moments too.
TEST(TensorState, ReplicasStayTheSame) {
  for (const bool shares_rows : {false, true}) {
    ModelRuntimeOptions options = options_for(kGpt2, true, DType::kBF16);
    options.sequence_parallel = shares_rows;
    std::vector<std::vector<float>> replicas(2);
    on_ranks(options, MeshShape{.tensor = 2}, 0,
             [&](ModelRuntime& engine, const ModelRuntimeOptions& own, Communicator& world) {
               engine.fill_state(RandomState(1234));
               TrainedRun run;
               train_steps(engine, own, 1, kSteps, run);
               std::vector<float>& all = replicas.at(static_cast<std::size_t>(world.rank()));
               for (const UnitLayout& unit : engine.compute().layout()) {
                 for (const StateField field : kStateFields) {
                   const ElementSpan& part = unit.replicated;
                   std::vector<float> read(static_cast<std::size_t>(part.end - part.begin));
                   engine.state().read(field, static_cast<std::int32_t>(unit.index), part.begin,
                                       read);
                   all.insert(all.end(), read.begin(), read.end());
                 }
               }
             });
    EXPECT_FALSE(replicas[0].empty());
    EXPECT_EQ(replicas[0], replicas[1]);
  }
}

// The comparison with one rank notices collectives that do nothing on all ranks.
TEST(TensorRanks, AMissingSumIsNoticed) {
  using Which = std::function<bool(const Op&)>;
  const auto adds = [](const Op& op, Account account) {
    return op.lane == Lane::kTensor && op.kind == OpKind::kAllReduce && op.account == account;
  };
  const auto sums_of = [adds](std::int32_t unit) {
    return [adds, unit](const Op& op) {
      return op.unit == unit && op.micro_batch == 1 && adds(op, Account::kActivations);
    };
  };
  const std::pair<bool, Which> planted[] = {
      {false, sums_of(0)},
      {false, sums_of(3)},
      {false, sums_of(7)},  // in the head: the gradient of its input
      {true, [adds](const Op& op) { return adds(op, Account::kGradients); }},
  };
  for (const auto& [shares_rows, which] : planted) {
    ModelRuntimeOptions options = options_for(kLlama, true, DType::kF32);
    options.sequence_parallel = shares_rows;
    std::atomic<int> broken_ops = 0;
    const auto plant = [&](TierPlan& plan) {
      for (Op& op : plan.training.program.ops) {
        if (!which(op)) continue;
        op.reads.front().size_bytes = op.writes.front().size_bytes = 0;
      }
      broken_ops = static_cast<int>(std::ranges::count_if(plan.training.program.ops, which));
    };
    const Curve one = curve_of(options, {}, 1);
    const Curve broken = curve_of(options, MeshShape{.tensor = 2}, 1, plant);
    EXPECT_GT(broken_ops.load(), 0);
    const Distance off = distance(broken, one);
    EXPECT_GT(std::max(off.loss / 1e-7, off.norm / 1e-6), 20);
  }
}

#endif

}  // namespace
}  // namespace terrace

#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <optional>
#include <vector>

#include "tests/runtime/checkpoint/snapshot_state.h"
#include "tests/runtime/engine/ranks_fixture.h"

// Trainings with one switch set, which must not change bits.
namespace terrace {

struct SwitchedRun {
  Curve curve;
  double evaluation = 0;
  SnapshotState state;
};

inline SwitchedRun result_of(const ModelRuntimeOptions& options, std::int64_t steps) {
  std::optional<SnapshotState> state;
  const TrainedRun run =
      train_tiny(options, steps, [&](ModelRuntime& engine) { state.emplace(engine); });
  return {run.curve, run.evaluation, *state};
}

// Returns the values of a tensor in one field of an engine's state.
inline std::vector<float> values_of(const SwitchedRun& result, StateField field,
                                    const UnitLayout& unit, const ParameterTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  result.state.read(field, unit, tensor.offset, values);
  return values;
}

struct Switch {
  const char* name;
  void (*set)(ModelRuntimeOptions&);
};

inline constexpr Switch kSwitches[] = {
    {"device", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kDevice); }},
    {"host", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kHost); }},
    {"drive", [](ModelRuntimeOptions& o) { all_on(o, true, Tier::kNvme); }},
    {"drive_from_device", [](ModelRuntimeOptions& o) { all_on(o, false, Tier::kNvme); }},
    {"parameters_on_drive",
     [](ModelRuntimeOptions& o) {
       o.placement.homes[StateClass::kParameters] = Tier::kNvme;
       o.placement.has_nvme = true;
     }},
    {"optimizer_on_drive_whole_masters",
     [](ModelRuntimeOptions& o) {
       o.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
       o.placement.has_nvme = true;
       o.optimizer.splits_bf16_masters = false;
     }},
    {"recompute", [](ModelRuntimeOptions& o) { o.placement.recompute = true; }},
    {"layer_major_recompute_drive",
     [](ModelRuntimeOptions& o) {
       all_on(o, false, Tier::kNvme);
       o.placement.order = MicroBatchOrder::kLayerMajor;
       o.placement.recompute = true;
     }},
    {"streamed",
     [](ModelRuntimeOptions& o) {
       all_on(o, false, Tier::kHost);
       o.placement.streamed_updates = 1.0;
     }},
    {"no_lookahead",
     [](ModelRuntimeOptions& o) {
       all_on(o, true, Tier::kNvme);
       o.placement.lookahead = 0;
       o.threads = 1;
     }},
};

inline void expect_same(const SwitchedRun& run, const SwitchedRun& plain, const char* what) {
  EXPECT_EQ(run.curve, plain.curve) << what;
  EXPECT_EQ(run.evaluation, plain.evaluation) << what;
  EXPECT_TRUE(run.state == plain.state) << what;
}

// Expects every second switch, from index `first` on, to leave the bits of three steps unchanged.
inline void expect_bits_over_switches(const ModelRuntimeOptions& options, std::size_t first) {
  const SwitchedRun plain = result_of(options, 3);
  for (std::size_t s = first; s < std::size(kSwitches); s += 2) {
    const Switch& one = kSwitches[s];
    ModelRuntimeOptions other = options;
    const TemporaryDirectory drive;
    other.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
    one.set(other);
    expect_same(result_of(other, 3), plain, one.name);
  }
}

// Expects training to go on from a state that was read out as if it had not stopped.
inline void expect_resumed_bits(const ModelRuntimeOptions& options) {
  const SwitchedRun whole = result_of(options, 4);
  std::optional<SnapshotState> half;
  train_tiny(options, 2, [&](ModelRuntime& engine) { half.emplace(engine); });
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  engine.fill_state(*half);
  TrainedRun rest;
  train_steps(engine, options, 3, 4, rest);
  EXPECT_TRUE(SnapshotState(engine) == whole.state);
}

// Expects the ranks of a mesh to have the bits of its ZeRO stage 0 at every stage and in other
// places, and also with the model cut into `pipeline` pipeline stages.
inline void expect_bits_over_ranks(const ModelRuntimeOptions& options, const MeshShape& shape,
                                   int pipeline) {
  const RankedRun plain = train_ranks(options, shape, 0);
  for (std::int32_t stage = 1; stage <= 3 && shape.data > 1; ++stage) {
    ModelRuntimeOptions other = options;
    const TemporaryDirectory drive;
    other.nvme.directories = {{.path = drive.path(), .budget_bytes = {}}};
    if (stage > 1) all_on(other, stage == 2, Tier::kNvme);
    const RankedRun run = train_ranks(other, shape, stage);
    EXPECT_EQ(run.curves, plain.curves) << stage;
    EXPECT_EQ(run.state, plain.state) << stage;
  }
  MeshShape deep = shape;
  deep.pipeline = pipeline;
  const RankedRun run = train_ranks(options, deep, 1);
  EXPECT_EQ(run.curves.front(), plain.curves.front());
  EXPECT_EQ(run.state, plain.state);
}

}  // namespace terrace

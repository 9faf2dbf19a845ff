#pragma once

#include <optional>
#include <vector>

#include "tests/runtime/checkpoint/snapshot_state.h"
#include "tests/runtime/engine/ranks_fixture.h"

// Trainings with one switch set that must not change bits.
namespace terrace {

struct SwitchedRun {
  Curve curve;
  double evaluation = 0;
  SnapshotState state;
};

inline SwitchedRun result_of(const EngineOptions& options, std::int64_t steps) {
  std::optional<SnapshotState> state;
  const TrainedRun run = train_tiny(options, steps, [&](Engine& engine) { state.emplace(engine); });
  return {run.curve, run.evaluation, *state};
}

// Values of a tensor, of a state of an engine.
inline std::vector<float> values_of(const SwitchedRun& result, StateField field,
                                    const UnitLayout& unit, const ParameterTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  result.state.read(field, unit, tensor.offset, values);
  return values;
}

struct Switch {
  const char* name;
  void (*set)(EngineOptions&);
};

inline constexpr Switch kSwitches[] = {
    {"device", [](EngineOptions& o) { all_on(o, false, Tier::kDevice); }},
    {"host", [](EngineOptions& o) { all_on(o, false, Tier::kHost); }},
    {"drive", [](EngineOptions& o) { all_on(o, true, Tier::kNvme); }},
    {"drive_from_device", [](EngineOptions& o) { all_on(o, false, Tier::kNvme); }},
    {"parameters_on_drive",
     [](EngineOptions& o) {
       o.placement.homes[StateClass::kParameters] = Tier::kNvme;
       o.placement.has_nvme = true;
     }},
    {"optimizer_on_drive_whole_masters",
     [](EngineOptions& o) {
       o.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
       o.placement.has_nvme = true;
       o.optimizer.splits_bf16_masters = false;
     }},
    {"recompute", [](EngineOptions& o) { o.placement.recompute = true; }},
    {"layer_major_recompute_drive",
     [](EngineOptions& o) {
       all_on(o, false, Tier::kNvme);
       o.placement.order = MicroBatchOrder::kLayerMajor;
       o.placement.recompute = true;
     }},
    {"streamed",
     [](EngineOptions& o) {
       all_on(o, false, Tier::kHost);
       o.placement.streamed_updates = 1.0;
     }},
    {"no_lookahead",
     [](EngineOptions& o) {
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

}  // namespace terrace

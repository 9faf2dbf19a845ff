#pragma once

#include <gtest/gtest.h>

#include "tests/runtime/engine/ranks_fixture.h"

// Small trainings of ranks with a device each, and the same trainings on the CPU device.
namespace terrace {

struct RankMesh {
  const char* name;
  MeshShape shape;
  std::int32_t stage;
  ZeroPartition partition = ZeroPartition::kAll;
};

inline RankedRun train_mesh(const ModelRuntimeOptions& options, const RankMesh& mesh) {
  ModelRuntimeOptions of_mesh = options;
  of_mesh.zero_partition = mesh.partition;
  return train_ranks(of_mesh, mesh.shape, mesh.stage);
}

inline constexpr RankMesh kRankMeshes[] = {
    {"dp2_stage0", {.data = 2}, 0},
    {"dp2_stage1", {.data = 2}, 1},
    {"dp2_stage2", {.data = 2}, 2},
    {"dp2_stage3", {.data = 2}, 3},
    {"dp3_stage1", {.data = 3}, 1},
    {"hpz", {.data = 4, .islands = 2}, 3, ZeroPartition::kHpz},
    {"hsdp", {.data = 4, .islands = 2}, 3, ZeroPartition::kHsdp},
    {"tp2", {.tensor = 2}, 0},
    {"pp2", {.pipeline = 2}, 0},
    {"dp2_tp2_stage3", {.data = 2, .tensor = 2}, 3},
    {"dp2_pp2_stage1", {.data = 2, .pipeline = 2}, 1}};

inline ModelRuntimeOptions cpu_options(std::string_view family, DType type = DType::kBF16) {
  ModelConfig model = tiny_model(family, true, false);
  model = with_shape(model, {.layers = 2});
  ModelRuntimeOptions options = tiny_options(model, type);
  options.batch = {1, 12};
  options.placement.micro_batches = 2;
  options.chunk_elements = 8 * kBlockElements;
  return options;
}

// Puts all state in one tier, except the optimizer's, which goes to another.
inline ModelRuntimeOptions gpu_options(const ModelRuntimeOptions& plain,
                                       const ComputeBackend& backend, Tier tier, Tier optimizer) {
  ModelRuntimeOptions options = plain;
  options.backend = &backend;
  all_on(options, false, tier);
  options.placement.homes[StateClass::kOptimizer] = optimizer;
  return options;
}

// Lets the ranks exchange codes, of parameters too where the mesh allows it. Returns whether they
// exchange any.
inline bool add_codes(ModelRuntimeOptions& options, const RankMesh& mesh) {
  if (mesh.shape.data == 1 || mesh.stage == 0) return false;
  options.wire = {.gradients = WireForm::kInt4, .keeps_errors = true};
  const bool divides_parameters = mesh.stage == 3 && mesh.partition == ZeroPartition::kAll;
  if (divides_parameters) options.wire.parameters = WireForm::kInt8;
  return true;
}

// Expects a run with device memory to equal the same run on the CPU device.
inline void expect_equal_runs(const RankedRun& run, const RankedRun& expected) {
  EXPECT_EQ(run.curves, expected.curves);
  EXPECT_EQ(run.evaluations, expected.evaluations);
  EXPECT_EQ(run.state, expected.state);
  EXPECT_GT(run.run.ledger[Tier::kDevice].peak_bytes, 0U);
}

}  // namespace terrace

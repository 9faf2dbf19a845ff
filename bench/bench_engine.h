#pragma once

#include <cstdint>

#include "bench/bench.h"
#include "runtime/engine/model_runtime.h"

namespace terrace {

// What steps of a benchmark begin with: unified mode, everything in memory, clipping, the threads
// of the benchmark divided as in training, and its NVMe directories, the current one if it has
// none, for those that place something there.
ModelRuntimeOptions bench_engine(const ModelConfig& model, const BatchShape& batch, DType type,
                                 const BenchOptions& bench);

// Parameters, gradients and optimizer state at home on NVMe, and a budget of host memory that
// leaves slack to what moves, as in training.
void place_states_on_nvme(ModelRuntimeOptions& engine);

// What the engine will hold on its drives; plans it. Throws OutOfMemory as plan_model() does.
std::uint64_t nvme_bytes(const ModelRuntimeOptions& engine);

}  // namespace terrace

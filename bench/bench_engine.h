#pragma once

#include <cstdint>

#include "bench/bench.h"
#include "runtime/engine/engine.h"

namespace terrace {

// What steps of a benchmark begin with: unified mode, everything in memory, clipping, the threads
// of the benchmark divided as in training, and its NVMe directories, the current one if it has
// none, for those that place something there.
EngineOptions bench_engine(const ModelConfig& model, const BatchShape& batch, DType type,
                           const BenchOptions& bench);

// Parameters, gradients and optimizer state at home on NVMe, and a budget of host memory that
// leaves slack to what moves, as in training.
void place_states_on_nvme(EngineOptions& engine);

// What the engine will hold on its drives; plans it. Throws OutOfMemory as plan_engine() does.
std::uint64_t nvme_bytes(const EngineOptions& engine);

}  // namespace terrace

#pragma once

#include <cstdint>

#include "bench/bench.h"
#include "runtime/engine/model_runtime.h"

namespace terrace {

// Returns the engine options that steps of a benchmark begin with: unified mode, everything in
// memory, clipping, the threads of the benchmark divided as in training, and the directories of
// bench_directories() for steps that place something on NVMe.
ModelRuntimeOptions bench_engine(const ModelConfig& model, const BatchShape& batch, DType type,
                                 const BenchOptions& bench);

// Places the homes of parameters, gradients and optimizer state on NVMe, and sets a budget of host
// memory that leaves slack for what moves, as in training.
void place_states_on_nvme(ModelRuntimeOptions& engine);

// Plans the engine, and returns the bytes that it will hold on its drives. Throws OutOfMemory as
// plan_model() does.
std::uint64_t nvme_bytes(const ModelRuntimeOptions& engine);

}  // namespace terrace

#include "bench/bench_engine.h"

#include "bench/drive_check.h"
#include "memory/host/thread_plan.h"

namespace terrace {

ModelRuntimeOptions bench_engine(const ModelConfig& model, const BatchShape& batch, DType type,
                                 const BenchOptions& bench) {
  ModelRuntimeOptions engine;
  engine.model = model;
  engine.batch = batch;
  engine.compute_type = type;
  PlacementRequest& request = engine.placement;
  request.homes[StateClass::kParameters] = request.homes[StateClass::kGradients] = Tier::kHost;
  request.homes[StateClass::kOptimizer] = request.homes[StateClass::kActivations] = Tier::kHost;
  request.recompute = false;
  engine.optimizer.max_grad_norm = 1.0;
  engine.threads = bench.threads;
  engine.update_threads = plan_threads(bench.threads, read_host_limits(), read_topology()).update;
  engine.evaluates = false;
  for (const std::string& directory : bench_directories(bench)) {
    engine.nvme.directories.push_back({.path = directory, .budget_bytes = std::nullopt});
  }
  engine.nvme.named_files = false;
  return engine;
}

void place_states_on_nvme(ModelRuntimeOptions& engine) {
  engine.placement.has_nvme = true;
  engine.placement.homes[StateClass::kParameters] = engine.placement.homes[StateClass::kGradients] =
      Tier::kNvme;
  engine.placement.homes[StateClass::kOptimizer] = Tier::kNvme;
  // Several such engines exist at the same time.
  engine.budgets[static_cast<std::size_t>(Tier::kHost)] = read_host_limits().usable_bytes() / 4;
}

std::uint64_t nvme_bytes(const ModelRuntimeOptions& engine) {
  std::uint64_t bytes = 0;
  for (const Buffer& buffer : plan_model(engine).training.program.buffers) {
    if (buffer.tier == Tier::kNvme) bytes += buffer.size_bytes;
  }
  return bytes;
}

}  // namespace terrace

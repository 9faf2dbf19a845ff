#include "bench/bench_engine.h"

#include "bench/drive_check.h"
#include "memory/host/thread_plan.h"

namespace terrace {

EngineOptions bench_engine(const ModelConfig& model, const BatchShape& batch, DType type,
                           const BenchOptions& bench) {
  EngineOptions engine;
  engine.model = model;
  engine.batch = batch;
  engine.compute_type = type;
  PlacementRequest& request = engine.placement;
  request.parameters = request.gradients = Tier::kHost;
  request.optimizer = request.activations = Tier::kHost;
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

void place_states_on_nvme(EngineOptions& engine) {
  engine.placement.has_nvme = true;
  engine.placement.parameters = engine.placement.gradients = Tier::kNvme;
  engine.placement.optimizer = Tier::kNvme;
  // Several such engines are there at once.
  engine.budgets[static_cast<std::size_t>(Tier::kHost)] = read_host_limits().usable_bytes() / 4;
}

std::uint64_t nvme_bytes(const EngineOptions& engine) {
  std::uint64_t bytes = 0;
  for (const Buffer& buffer : plan_engine(engine).training.program.buffers) {
    if (buffer.tier == Tier::kNvme) bytes += buffer.size_bytes;
  }
  return bytes;
}

}  // namespace terrace

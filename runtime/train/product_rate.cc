#include "runtime/train/product_rate.h"

#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "memory/host/host_memory.h"
#include "memory/host/worker_arena.h"
#include "runtime/engine/compute_backend.h"
#include "runtime/train/seconds_of.h"

namespace terrace {

double product_flops_per_s(const ProductRun& run) {
  constexpr double kEnough = 0.03;  // seconds
  const std::int64_t rows = run.rows;
  const std::int64_t width = run.width;
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(run.type);
  };
  HostMemory memory(2 * bytes(rows * width) + bytes(width * width) + 3 * 4096, {});
  std::byte* at = memory.bytes().data();
  const auto matrix = [&](std::int64_t r, std::int64_t c) {
    const TensorView made = view(at, run.type, r, c);
    at += round_up(bytes(r * c), 4096);
    return made;
  };
  const MatmulForward product = {
      matrix(rows, width), matrix(width, width), {}, matrix(rows, width)};
  const KernelTable& kernels = *cpu_lane_kernels().table;
  WorkerArena workers(run.threads, run.cpus);
  HostMemory scratch(
      std::max<std::size_t>(kernels.matmul_forward_workspace(product, workers.threads()), 64), {});
  KernelContext context;
  context.workers = &workers;
  context.workspace = scratch.bytes();
  double best = std::numeric_limits<double>::infinity();
  double spent = 0;
  for (int tries = 0; tries < 3 || (tries < 200 && spent < kEnough); ++tries) {
    const double seconds = seconds_of([&] { kernels.matmul_forward(context, product); });
    spent += seconds;
    best = std::min(best, seconds);
  }
  return 2.0 * static_cast<double>(rows * width * width) / best;
}

}  // namespace terrace

#include "runtime/train/device_rates.h"

#include <algorithm>
#include <memory>

#include "base/bytes.h"
#include "memory/host/host_memory.h"
#include "memory/host/worker_arena.h"
#include "runtime/train/stream_timer.h"

namespace terrace {

double device_product_flops_per_s(ComputeDevice& device, const ModelRuntimeOptions& options) {
  constexpr std::int64_t kMost = 8192;
  const std::int64_t rows = std::min(options.batch.rows(), kMost);
  const std::int64_t width = std::min(options.model.width, kMost);
  const auto bytes = [&](std::int64_t elements) {
    return round_up(static_cast<std::size_t>(elements) * size_of(options.compute_type), 4096);
  };
  const std::unique_ptr<DeviceMemory> memory =
      device.device().allocate(2 * bytes(rows * width) + bytes(width * width));
  std::byte* at = memory->bytes().data();
  const auto matrix = [&](std::int64_t r, std::int64_t c) {
    const TensorView made = view(at, options.compute_type, r, c);
    at += bytes(r * c);
    return made;
  };
  const MatmulForward product = {
      matrix(rows, width), matrix(width, width), {}, matrix(rows, width)};
  const LaneKernels kernels = device.kernels();
  WorkerArena workers(options.threads, options.cpus);
  const std::unique_ptr<DeviceMemory> scratch = device.device().allocate(std::max<std::size_t>(
      kernels.table->matmul_forward_workspace(product, workers.threads()), 64));
  KernelContext context;
  context.workers = &workers;
  context.workspace = scratch->bytes();
  context.products = kernels.products;
  StreamTimer timer(device.device());
  timer.fill(memory->bytes());
  const double seconds = timer.seconds_of([&](NativeStream stream) {
    context.stream = stream;
    kernels.table->matmul_forward(context, product);
  });
  return 2.0 * static_cast<double>(rows * width * width) / seconds;
}

void measure_device_copies(ComputeDevice& device, const ModelRuntimeOptions& options,
                           MachineProfile& profile) {
  constexpr std::size_t kPage = 4096;
  const std::size_t bytes =
      std::max(kPage, std::min(64 * kMiB, device.device().free_bytes() / 2 / kPage * kPage));
  HostMemory host(bytes, {.numa_nodes = options.numa_nodes});
  const std::unique_ptr<HostRegistration> locked = device.lock(host.bytes());
  const std::unique_ptr<DeviceMemory> memory = device.device().allocate(2 * bytes);
  const std::span<std::byte> first = memory->bytes().first(bytes);
  StreamTimer timer(device.device());
  const auto rate = [&](std::span<std::byte> target, std::span<const std::byte> source) {
    return static_cast<double>(bytes) / timer.seconds_of_copy(target, source);
  };
  profile.upload_bytes_per_s = rate(first, host.bytes());
  profile.download_bytes_per_s = rate(host.bytes(), first);
  profile.compute_bytes_per_s = 2 * rate(memory->bytes().subspan(bytes), first);
  profile.copy_cores = 0;
}

}  // namespace terrace

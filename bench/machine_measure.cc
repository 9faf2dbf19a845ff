#include "bench/machine_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "bench/bench_engine.h"
#include "bench/device_limits.h"
#include "bench/lane_copies.h"
#include "bench/profile_load.h"
#include "memory/cuda/cuda_device.h"
#include "memory/host/host_limits.h"
#include "memory/host/topology.h"
#include "runtime/model/model_shape.h"
#include "runtime/train/product_rate.h"

namespace terrace {
namespace {

using enum MachineFigure;

// A model whose updates are long enough to be timed: 33M parameters.
ModelConfig timed_model() {
  return with_shape(load_model_config("nano"), {.layers = 8,
                                                .width = 512,
                                                .heads = 8,
                                                .key_value_heads = 4,
                                                .head_width = 64,
                                                .intermediate = 1408,
                                                .vocabulary = 8192,
                                                .positions = 512});
}

class MeasuredFigures {
 public:
  explicit MeasuredFigures(Machine& machine) : machine_(machine) {}
  void set(MachineFigure figure, double value) { machine_.at(figure).emplace().value = value; }

 private:
  Machine& machine_;
};

MachineFigure flops_figure(DType type) {
  if (type == DType::kF16) return kFp16FlopsPerS;
  return type == DType::kBF16 ? kBf16FlopsPerS : kFp32FlopsPerS;
}

double best_rate(const std::vector<ProductRate>& rates) {
  return std::ranges::max_element(rates, {}, &ProductRate::flops_per_s)->flops_per_s;
}

std::vector<ProductSpeed> curve_of(const std::vector<ProductRate>& rates) {
  const double best = best_rate(rates);
  std::vector<ProductSpeed> curve;
  for (const ProductRate& rate : rates) curve.push_back({rate.flops, rate.flops_per_s / best});
  return curve;
}

// Returns the widths of the square products that are measured, up to `widest`.
std::vector<std::int64_t> product_widths(std::int64_t widest) {
  std::vector<std::int64_t> widths;
  for (std::int64_t width = widest; width >= 64 && widths.size() < 7; width /= 2) {
    widths.push_back(width);
  }
  std::ranges::reverse(widths);
  return widths;
}

std::vector<ProductRate> processor_rates(DType type, int threads) {
  constexpr std::int64_t kWidest = 2048;
  std::vector<ProductRate> rates;
  for (const std::int64_t width : product_widths(kWidest)) {
    const auto side = static_cast<double>(width);
    rates.push_back(
        {2 * side * side * side,
         product_flops_per_s({.type = type, .rows = width, .width = width, .threads = threads})});
  }
  return rates;
}

using RatesOfType = std::function<std::vector<ProductRate>(DType)>;

// Sets the rates that products reach, each by itself the best of all sizes.
void measure_products(std::span<const DType> types, const RatesOfType& rates_of, Machine& machine) {
  MeasuredFigures figures(machine);
  for (const DType type : types) {
    const std::vector<ProductRate> rates = rates_of(type);
    figures.set(flops_figure(type), best_rate(rates));
    // One curve serves all types.
    if (type == DType::kBF16) machine.product_curve = curve_of(rates);
  }
  figures.set(kProductShare, 1);  // the rates above are reached
}

void measure_processors(const MachineMeasurement& measurement, Machine& machine) {
  constexpr std::array kTypes = {DType::kBF16, DType::kF32};
  measure_products(
      kTypes, [&](DType type) { return processor_rates(type, measurement.threads); }, machine);
}

// Returns bytes per second: the best of three rounds.
double copy_rate(CopyLoad& load, CopyWays ways, double CopySeconds::* way, std::size_t bytes) {
  double least_s = std::numeric_limits<double>::infinity();
  load.run(ways);  // the first run makes what is made late
  for (int round = 0; round < 3; ++round) least_s = std::min(least_s, load.run(ways).*way);
  return static_cast<double>(bytes) / least_s;
}

void measure_device_copies(const BenchDevice& device, MeasuredFigures& figures) {
  constexpr std::size_t kBytes = 512 * kMiB;
  const std::unique_ptr<ComputeDevice> compute = device.backend->make(kBytes);
  LaneCopies copies(*compute, kBytes, device.numa_nodes);
  figures.set(kUploadBytesPerS, copy_rate(copies, CopyWays::kUpload, &CopySeconds::upload, kBytes));
  figures.set(kDownloadBytesPerS,
              copy_rate(copies, CopyWays::kDownload, &CopySeconds::download, kBytes));
  // Half of the bytes are read, and half are written.
  figures.set(kDeviceMemoryBytesPerS,
              copy_rate(copies, CopyWays::kLocal, &CopySeconds::local, kBytes));
  figures.set(kLinkShare, 1);  // the rates above are reached
}

void measure_device(const MachineMeasurement& measurement, Machine& machine) {
  constexpr double kProductSeconds = 0.1;
  const BenchDevice& device = *measurement.device;
  const std::vector<std::int64_t> widths = product_widths(measurement.widest_product);
  MeasuredFigures figures(machine);
  figures.set(kDeviceMemoryBytes, static_cast<double>(device.capacity_bytes + kCudaMarginBytes));
  {
    CaseDevice products(device, product_rates_bytes(widths.back()));
    measure_products(
        measurement.types,
        [&](DType type) { return product_rates(products, type, widths, kProductSeconds); },
        machine);
  }
  measure_device_copies(device, figures);
}

void measure_host(const MachineMeasurement& measurement, MeasuredFigures& figures) {
  MachineProfile profile;
  CopiesAlone(256 * kMiB, measurement.threads).measure(profile);
  figures.set(kHostMemoryBytesPerS, profile.memory_bytes_per_s);
  BenchOptions bench;
  bench.threads = measurement.threads;
  OpsAlone(bench_engine(timed_model(), {1, 64}, DType::kBF16, bench)).measure(profile);
  figures.set(kUpdateBytesPerS, 1 / profile.seconds_per_work.at({.kind = OpKind::kUpdate}));
}

void measure_drive_of(const MachineMeasurement& measurement, Log& log, MeasuredFigures& figures) {
  constexpr std::size_t kExtentBytes = 64 * kMiB;
  StoreLoad::Options load;
  load.extent_bytes = kExtentBytes;
  load.store.directories = {{.path = measurement.nvme, .budget_bytes = {}}};
  load.store.named_files = false;
  load.total_bytes = 16 * kExtentBytes;
  StoreLoad store(load, log);
  const DriveRates rates = measure_drive(store, measurement.seconds);
  figures.set(kDriveReadBytesPerS, rates.read_bytes_per_s);
  figures.set(kDriveWriteBytesPerS, rates.write_bytes_per_s);
}

}  // namespace

Machine measure_machine(const MachineMeasurement& measurement, Log& log) {
  const Topology topology = read_topology();
  const HostLimits limits = read_host_limits();
  Machine machine;
  machine.name = measurement.name;
  machine.about = fmt::format("{}, {} of {} processors", topology.cpu_model, measurement.threads,
                              topology.hardware_threads);
  machine.devices = measurement.devices;
  MeasuredFigures figures(machine);
  figures.set(kCores, limits.usable_cpus());
  figures.set(kHostMemoryBytes, static_cast<double>(limits.whole_bytes()));
  measure_host(measurement, figures);
  if (measurement.device == nullptr) {
    measure_processors(measurement, machine);
  } else {
    machine.about =
        fmt::format("{} x {}; {}", machine.devices, measurement.device->description, machine.about);
    measure_device(measurement, machine);
  }
  if (!measurement.nvme.empty()) measure_drive_of(measurement, log, figures);
  return machine;
}

}  // namespace terrace

#include "bench/machine_measure.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "bench/bench_engine.h"
#include "bench/profile_load.h"
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

void measure_compute(const MachineMeasurement& measurement, MeasuredFigures& figures) {
  for (const auto& [figure, type] :
       {std::pair(kBf16FlopsPerS, DType::kBF16), std::pair(kFp32FlopsPerS, DType::kF32)}) {
    figures.set(figure, product_flops_per_s({.type = type, .threads = measurement.threads}));
  }
  figures.set(kProductShare, 1);  // the rates above are reached
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
  MeasuredFigures figures(machine);
  figures.set(kCores, limits.usable_cpus());
  figures.set(kHostMemoryBytes, static_cast<double>(limits.whole_bytes()));
  measure_compute(measurement, figures);
  if (!measurement.nvme.empty()) measure_drive_of(measurement, log, figures);
  return machine;
}

}  // namespace terrace

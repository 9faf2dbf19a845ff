#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench/bench_device.h"
#include "runtime/machine/machine.h"

namespace terrace {

struct MachineMeasurement {
  std::string name;
  int threads = 1;
  std::string nvme;    // a directory on the drive to measure; empty: drives are not measured
  double seconds = 1;  // of one measurement of the drive
  // One of the machine's `devices` GPUs, which are taken to be alike. Null: the processors compute.
  const BenchDevice* device = nullptr;
  std::int32_t devices = 0;
  std::vector<DType> types = {DType::kBF16, DType::kF16, DType::kF32};  // of products on the device
  std::int64_t widest_product = 16384;
};

// Measures this machine: memory, updates and a drive, and the device's products, memory and copies,
// or the products of the processors where there is no device. Takes some seconds, about 1 GiB of
// memory, and 4 GiB on a device. Each figure is from one measurement, or from the fastest of a few,
// so it is a little too good where other programs run. Throws as the store and the device do.
Machine measure_machine(const MachineMeasurement& measurement, Log& log);

}  // namespace terrace

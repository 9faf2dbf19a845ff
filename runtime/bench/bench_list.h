#pragma once

#include <vector>

#include "runtime/bench/bench.h"

// The functions of Bench::run, one per file.
namespace terrace {

std::vector<BenchResult> bench_io(const BenchOptions& options, Log& log);
std::vector<BenchResult> bench_copy(const BenchOptions& options, Log& log);
// bench_copy() of BenchOptions::device.
std::vector<BenchResult> bench_device_copy(const BenchOptions& options, Log& log);
std::vector<BenchResult> bench_optimizer(const BenchOptions& options, Log& log);
std::vector<BenchResult> bench_kernel(const BenchOptions& options, Log& log);
// bench_kernel() of BenchOptions::device.
std::vector<BenchResult> bench_device_kernel(const BenchOptions& options, Log& log);
std::vector<BenchResult> bench_step(const BenchOptions& options, Log& log);
// bench_step() with --zero-stage or --local-ranks.
std::vector<BenchResult> bench_ranked_step(const BenchOptions& options, Log& log);
// Under mpirun: called by every rank, and rank 0 has the results.
std::vector<BenchResult> bench_collective(const BenchOptions& options, Log& log);
// bench_step() of BenchOptions::device.
std::vector<BenchResult> bench_device_step(const BenchOptions& options, Log& log);
// The part of bench_step() that holds the simulator to steps of ten configurations.
std::vector<BenchResult> bench_step_predictions(const BenchOptions& options, Log& log);
// Steps whose states are on NVMe beside steps in memory.
std::vector<BenchResult> bench_overlap(const BenchOptions& options, Log& log);
// The part of bench_optimizer() that needs a drive.
BenchResult bench_streamed_update(const BenchOptions& options, Log& log);

// check_drives() for these parts, before others are measured.
void check_streamed_update(const BenchOptions& options, Log& log);
void check_step_predictions(const BenchOptions& options, Log& log);

}  // namespace terrace

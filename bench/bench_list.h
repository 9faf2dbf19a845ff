#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/bench_cost.h"
#include "bench/bench_record.h"

// The functions of Bench::run, one per file.
namespace terrace {

void bench_io(const BenchOptions& options, BenchRecord& record, Log& log);
void bench_copy(const BenchOptions& options, BenchRecord& record, Log& log);
// bench_copy() for BenchOptions::device.
void bench_device_copy(const BenchOptions& options, BenchRecord& record, Log& log);
void bench_optimizer(const BenchOptions& options, BenchRecord& record, Log& log);
void bench_kernel(const BenchOptions& options, BenchRecord& record, Log& log);
// bench_kernel() for BenchOptions::device.
void bench_device_kernel(const BenchOptions& options, BenchRecord& record, Log& log);
void bench_step(const BenchOptions& options, BenchRecord& record, Log& log);
// bench_step() with --zero-stage or --local-ranks.
void bench_ranked_step(const BenchOptions& options, BenchRecord& record, Log& log);
// Under a launcher: called by every rank, and rank 0 has the results.
void bench_collective(const BenchOptions& options, BenchRecord& record, Log& log);
// bench_step() for BenchOptions::device.
void bench_device_step(const BenchOptions& options, BenchRecord& record, Log& log);
// The part of bench_step() that compares the simulator with steps of ten configurations.
void bench_step_predictions(const BenchOptions& options, BenchRecord& record, Log& log);
// Measures only the ten configurations of these options, in this share of the time that is left,
// without telling the record what will be measured.
void run_step_predictions(const BenchOptions& options, double share, BenchRecord& record, Log& log);
// Steps whose states are on NVMe beside steps in memory.
void bench_overlap(const BenchOptions& options, BenchRecord& record, Log& log);
// The part of bench_optimizer() that needs a drive. It does not tell the record what it will
// measure.
void bench_streamed_update(const BenchOptions& options, BenchRecord& record, Log& log);

// check_drives() for these parts, before others are measured.
void check_streamed_update(const BenchOptions& options, Log& log);
void check_step_predictions(const BenchOptions& options, Log& log);

// The functions of Bench::names. If the options have a device, the names are of its results.
std::vector<std::string> names_of_io(const BenchOptions& options);
std::vector<std::string> names_of_copy(const BenchOptions& options);
std::vector<std::string> names_of_device_copy();
std::vector<std::string> names_of_optimizer(const BenchOptions& options);
std::vector<std::string> names_of_kernel(const BenchOptions& options);
std::vector<std::string> names_of_device_kernel(const BenchOptions& options);
std::vector<std::string> names_of_step(const BenchOptions& options);
std::vector<std::string> names_of_ranked_step(const BenchOptions& options);
std::vector<std::string> names_of_device_step(const BenchOptions& options);
std::vector<std::string> names_of_collective(const BenchOptions& options);
std::vector<std::string> names_of_overlap(const BenchOptions& options);
std::vector<std::string> step_prediction_names(const BenchOptions& options);

// The functions of Bench::cost, each with its benchmark.
BenchCost cost_of_io(const BenchOptions& options, const MachineSpeed& speed);
BenchCost cost_of_copy(const BenchOptions& options, const MachineSpeed& speed);
BenchCost cost_of_optimizer(const BenchOptions& options, const MachineSpeed& speed);
BenchCost cost_of_kernel(const BenchOptions& options, const MachineSpeed& speed);
BenchCost cost_of_step(const BenchOptions& options, const MachineSpeed& speed);
BenchCost cost_of_ranked_step(const BenchOptions& options, const MachineSpeed& speed);
BenchCost cost_of_collective(const BenchOptions& options, const MachineSpeed& speed);
BenchCost cost_of_step_predictions(const BenchOptions& options, const MachineSpeed& speed);
BenchCost cost_of_overlap(const BenchOptions& options, const MachineSpeed& speed);
BenchCost cost_of_streamed_update(const BenchOptions& options, const MachineSpeed& speed);

// The functions of Bench::fit.
void fit_io(BenchOptions& options, const MachineSpeed& speed);
void fit_copy(BenchOptions& options, const MachineSpeed& speed);
void fit_optimizer(BenchOptions& options, const MachineSpeed& speed);
void fit_kernel(BenchOptions& options, const MachineSpeed& speed);

}  // namespace terrace

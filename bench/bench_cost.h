#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/log.h"
#include "bench/bench.h"
#include "runtime/model/model_config.h"

// How long benchmarks take, estimated before they begin.
namespace terrace {

// The work that the machine does in a second, measured quickly: within a factor of two or so.
struct MachineSpeed {
  double bf16_flops_per_s = 1e11;
  double fp32_flops_per_s = 1e11;
  double copy_bytes_per_s = 5e9;         // a byte is read and written; the first touch costs more
  double drive_write_bytes_per_s = 1e9;  // of all drives together
  bool drive_is_known = false;

  double flops_per_s(DType type) const {
    return type == DType::kBF16 ? bf16_flops_per_s : fp32_flops_per_s;
  }
};

// Multiplies and copies for a tenth of a second, on all threads of the options.
MachineSpeed measure_speed(const BenchOptions& options);
// Adds the rate at which the drives of the options write. Writes at most 64 MiB to each, for at
// most a quarter of a second. Throws as check_drives() does.
void measure_drives(const BenchOptions& options, MachineSpeed& speed, Log& log);

// Returns the operations of the products of a step with `tokens` tokens, forward and backward.
double flops_of_model_step(const ModelConfig& model, std::int64_t tokens);
// The same for the head alone.
double flops_of_head(const ModelConfig& model, std::int64_t tokens);
// The same for the products of one block and of the head.
double flops_of_unit_kernels(const ModelConfig& model, std::int64_t tokens);

// "about 4 min 30 s", "about 20 s".
std::string about_text(double seconds);

// Returns the text that is shown before a benchmark begins: its whole time, what it writes and
// where, and what its time limit means. It does not begin with the name of the benchmark.
std::string cost_text(const BenchCost& cost, const BenchOptions& options,
                      const MachineSpeed& speed);

}  // namespace terrace

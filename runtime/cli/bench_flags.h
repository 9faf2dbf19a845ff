#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "runtime/config/flag_value.h"
#include "runtime/config/train_options.h"

// The flags of `terrace bench`.
namespace terrace {

enum class BenchOutput : std::uint8_t { kTable, kJson, kCsv };

// The request that the arguments of a benchmark make.
struct BenchCommand {
  BenchOptions options;  // without a device
  DeviceChoice device;   // the device to measure
  BenchOutput output = BenchOutput::kTable;
  std::vector<std::string> compare;  // an earlier document, and one to compare it with
  bool names_drives = false;         // --nvme
  bool leaves_grid_out = false;      // --no-grid
};

// Reads the arguments after `terrace bench KIND`. Throws ConfigError for arguments that are
// unknown, wrong, or meaningless for this benchmark. Every benchmark takes --nvme and --no-grid, so
// that the same arguments work for all; the caller says where they have no effect.
BenchCommand read_bench_command(const Bench& bench, const std::vector<std::string>& arguments);

// Return the text that `terrace bench --help` and `terrace bench KIND --help` print: all kinds, or
// the flags that have a meaning for one kind.
std::string bench_help();
std::string bench_help(const Bench& bench);

}  // namespace terrace

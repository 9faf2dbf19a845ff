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

// What was asked for.
struct BenchCommand {
  BenchOptions options;  // without a device
  DeviceChoice device;   // to measure
  BenchOutput output = BenchOutput::kTable;
  std::vector<std::string> compare;  // a document of before, and one to compare it with
  bool names_drives = false;         // --nvme
  bool leaves_grid_out = false;      // --no-grid
};

// Reads the arguments behind `terrace bench KIND`. Throws ConfigError for what is unknown, wrong,
// or means nothing for this benchmark. --nvme and --no-grid are taken by every benchmark, so that
// the same arguments do for all; whoever runs it says where they change nothing.
BenchCommand read_bench_command(const Bench& bench, const std::vector<std::string>& arguments);

// What `terrace bench --help` and `terrace bench KIND --help` print: all kinds; or the flags that
// mean something for one.
std::string bench_help();
std::string bench_help(const Bench& bench);

}  // namespace terrace

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "runtime/bench/bench.h"

namespace terrace {

// Those on the drives that a benchmark uses.
std::vector<std::string> bench_directories(const BenchOptions& options);

// Looks at them, before anything is measured that would be lost: each is there, can be written to,
// and has room for its part of so many bytes. Throws ConfigError, OutOfMemory.
void check_drives(const BenchOptions& options, std::uint64_t total_bytes, Log& log);

}  // namespace terrace

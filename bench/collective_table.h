#pragma once

#include <span>
#include <string>

#include "bench/bench.h"

namespace terrace {

// Returns whether the result is of a collective.
bool is_in_rate_table(const BenchResult& result);

// Returns a table for each collective and type among the results, with a line for each size, in the
// columns of nccl-tests. Returns nothing where no result is of a collective.
std::string rate_tables(std::span<const BenchResult> results);

}  // namespace terrace

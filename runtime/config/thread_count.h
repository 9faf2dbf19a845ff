#pragma once

#include "runtime/config/flag_value.h"

namespace terrace {

// Returns the most threads that can compute in one process: four for each processor that it may
// use, and at least 256. oneTBB, which runs them, has no more.
int most_threads();

// Returns the value of --threads, a number. Throws ConfigError for less than 1 or more than
// most_threads().
int read_threads(const FlagValue& value);

}  // namespace terrace

#pragma once

#include <optional>
#include <span>
#include <vector>

namespace terrace {

// Returns the processors that the calling thread may run on: OS indices, ascending. None where the
// system does not tell, as some containers refuse sched_getaffinity.
std::optional<std::vector<int>> affinity_of_thread();

// The same, never empty: all processors of the machine where the system does not tell.
std::vector<int> cpus_of_thread();

// Lets the calling thread run on these only. False where the system refuses.
bool confine_thread(std::span<const int> cpus);

}  // namespace terrace

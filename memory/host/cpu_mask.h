#pragma once

#include <optional>
#include <span>
#include <vector>

namespace terrace {

// Returns the processors that the calling thread may run on: OS indices, ascending. Returns nothing
// where the system does not say, because some containers refuse sched_getaffinity.
std::optional<std::vector<int>> affinity_of_thread();

// Returns the same, but never empty: all processors of the machine where the system does not say.
std::vector<int> cpus_of_thread();

// Restricts the calling thread to these processors. Returns false where the system refuses.
bool confine_thread(std::span<const int> cpus);

}  // namespace terrace

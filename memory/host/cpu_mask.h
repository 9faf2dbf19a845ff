#pragma once

#include <optional>
#include <span>
#include <vector>

namespace terrace {

// Returns the processors that the calling thread may run on: OS indices, ascending. Returns nothing
// if the system does not tell; some containers refuse sched_getaffinity.
std::optional<std::vector<int>> affinity_of_thread();

// Returns the same, or all processors of the machine if the system does not tell. Never empty.
std::vector<int> cpus_of_thread();

// Restricts the calling thread to these processors. Returns false if the system refuses.
bool confine_thread(std::span<const int> cpus);

}  // namespace terrace

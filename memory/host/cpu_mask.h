#pragma once

#include <span>
#include <vector>

namespace terrace {

// The processors that the calling thread may run on: OS indices, ascending. Never empty.
std::vector<int> cpus_of_thread();

// Lets the calling thread run on these only. False where the system refuses.
bool confine_thread(std::span<const int> cpus);

}  // namespace terrace

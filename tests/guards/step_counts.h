#pragma once

#include <map>
#include <string>
#include <vector>

// The system calls, wake-ups, page faults, allocations and copies of a steady training step of the
// program, counted from outside.
namespace terrace {

// The counts by name: minor_faults, maps (mmap, munmap, mremap, brk, madvise), system_calls (all
// but sched_yield, whose number depends on how long a thread waits), wake_ups (threads woken by a
// futex), allocations, copied_bytes (by memcpy and memmove). Each is a mean of the counted steps.
using StepCounts = std::map<std::string, double>;

struct CountedRun {
  std::vector<std::string> arguments;  // of the program, without --run-dir and --max-steps
  int warm_steps = 2;                  // before the steps that are counted
  int counted_steps = 3;
};

// Returns whether strace is installed and may trace a program; counts need it.
bool can_count();

// Runs the program as its users do, in a directory of its own. A run that fails fails the test.
StepCounts count_steps(const CountedRun& run);

}  // namespace terrace

#pragma once

#include <cstdint>

// Runs that are killed without warning, and those that go on from what they left.
namespace terrace {

// Trains with a checkpoint every 5 steps and state on the drive, kills the run `kills` times at
// moments that come from the seed, resuming each time, and expects in the end the rows and the
// checkpoint of a run that was left alone.
void expect_kills_leave_no_trace(std::uint64_t seed, int kills);

}  // namespace terrace

#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Runs that are killed without warning, and those that go on from what they left.
namespace terrace {

// What the killed runs were doing.
struct Kills {
  int in_starts = 0;
  int in_steps = 0;
  int in_checkpoints = 0;
};

// Trains with `options` and checkpoints, kills the run `kills` times at moments all over it that
// come from the seed, resuming each time, and expects in the end the rows and the checkpoint of a
// run that was left alone.
Kills expect_kills_leave_no_trace(std::uint64_t seed, int kills,
                                  const std::vector<std::string>& options);

}  // namespace terrace

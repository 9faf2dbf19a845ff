#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Runs that are killed without warning, and runs that go on from the files that those left.
namespace terrace {

// The number of killed runs, by what they were doing.
struct Kills {
  int in_starts = 0;
  int in_steps = 0;
  int in_checkpoints = 0;
};

// Trains with `options` and checkpoints. Kills the run `kills` times, at moments that come from the
// seed and are spread all over the run, and resumes it each time. Expects, in the end, the rows and
// the checkpoint of a run that was left alone.
Kills expect_kills_leave_no_trace(std::uint64_t seed, int kills,
                                  const std::vector<std::string>& options);

}  // namespace terrace

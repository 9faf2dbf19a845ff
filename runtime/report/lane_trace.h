#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace terrace::report {

// A stretch of time of a lane, in microseconds since the first traced op.
struct LaneSlice {
  double begin_us = 0;
  double end_us = 0;
  std::string name;  // of the op, or of the op that was waited for
  bool is_wait = false;
};

struct TracedLane {
  std::string name;
  std::vector<LaneSlice> slices;  // by begin
};

// A step: from its first compute op to the first compute op of the next step.
struct StepWindow {
  std::int64_t step = 0;
  double begin_us = 0;
  double end_us = 0;
};

// The content of a run's trace.json.
struct LaneTrace {
  std::vector<TracedLane> lanes;
  std::vector<StepWindow> steps;
  // Returns whether there is nothing to draw.
  bool is_empty() const { return steps.empty(); }

  std::map<std::string, std::string> lane_of_op;  // the name of the lane by the name of an op
};

// Seconds that a lane waited for ops of another lane, while steps were traced.
struct LaneWait {
  std::string lane;
  std::string cause;  // a lane; "other" where the op is not in the trace
  double seconds = 0;
};

// Reads a trace line by line, so that a file with a torn end is read as far as it goes. `remarks`
// gets a sentence where lines were left out.
LaneTrace read_lane_trace(const std::string& path, std::vector<std::string>& remarks);

// Adds up the waits, the longest first.
std::vector<LaneWait> waits_in(const LaneTrace& trace);

}  // namespace terrace::report

#pragma once

#include <cstddef>
#include <string>

#include "runtime/report/lane_trace.h"

namespace terrace::report {

struct TimelineOptions {
  std::string id;                  // unique on the page, letters and digits
  std::size_t most_blocks = 2500;  // drawn in all steps together
  std::size_t most_steps = 3;
};

// Draws what each lane did in the first traced steps, one picture for each step. Neighbouring ops
// that are too short to be seen are drawn as one block, and the page says so.
std::string timeline_figures(const LaneTrace& trace, const TimelineOptions& options);

}  // namespace terrace::report

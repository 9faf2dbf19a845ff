#pragma once

#include <string>
#include <vector>

#include "runtime/report/report_run.h"
#include "runtime/report/run_sections.h"

namespace terrace::report {

// The part of a page that compares several runs: a table of figures, curves over each other, and
// the options on which they differ. Begins with a heading of level 2.
std::string comparison_section(const std::vector<ReportRun>& runs, const PictureRoom& room);

}  // namespace terrace::report

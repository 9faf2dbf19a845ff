#pragma once

#include <string>
#include <vector>

#include "runtime/report/report_run.h"

namespace terrace::report {

// The first line of the text, by which a file is known as one.
inline constexpr const char* kPrometheusMark = "# terrace report";

// Returns the last row of each run in Prometheus' text exposition format 0.0.4. Each sample has the
// label run; values that a row lacks are left out.
std::string prometheus_text(const std::vector<ReportRun>& runs);

}  // namespace terrace::report

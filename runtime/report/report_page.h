#pragma once

#include <string>
#include <vector>

#include "runtime/report/report_run.h"

namespace terrace::report {

// Text at the beginning of every page, by which a file is known as a report.
inline constexpr const char* kPageMark = "<meta name=\"generator\" content=\"terrace report\"/>";

// Returns the page about the runs, of which there is at least one: one HTML file that is
// well-formed XML, needs no other file and no network, and works without its script.
std::string report_page(const std::vector<ReportRun>& runs);

}  // namespace terrace::report

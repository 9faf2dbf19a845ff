#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/report/report_run.h"

// The parts of a page about one run. Each returns HTML that begins with a heading of level 3.
// `id` begins the ids in the part: it is unique on the page, letters and digits.
namespace terrace::report {

// The parts that have a heading, in the order of the page.
enum class RunPart : std::uint8_t { kCurves, kTime, kMemory, kPrediction, kPlan, kSetup };
inline constexpr std::size_t kRunParts = 6;

// Returns the heading of a part, which links lead to.
std::string section_heading(const std::string& id, RunPart part);
// Returns links to all parts of a run.
std::string links_to_parts(const std::string& id);

// How much room the pictures of a run may take on the page.
struct PictureRoom {
  std::size_t curve_points = 360;
  std::size_t timeline_blocks = 2500;
};

// Returns the most important figures, and what is missing. Has no heading.
std::string headline_section(const ReportRun& run);
std::string curves_section(const ReportRun& run, const std::string& id, const PictureRoom& room);
std::string time_section(const ReportRun& run, const std::string& id, const PictureRoom& room);
// Returns how a run with several ranks divided its work among them, and how long they waited for
// each other. It is a part of time_section(), and empty for a run with one rank.
std::string ranks_part(const ReportRun& run, const std::string& id);
std::string memory_section(const ReportRun& run, const std::string& id);
// Compares predictions with measurements, and links with their limits.
std::string prediction_section(const ReportRun& run, const std::string& id);
std::string plan_section(const ReportRun& run, const std::string& id);
std::string setup_section(const ReportRun& run, const std::string& id);

}  // namespace terrace::report

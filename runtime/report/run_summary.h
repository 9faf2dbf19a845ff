#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/report/report_run.h"

namespace terrace::report {

// The figures by which runs are compared, from the rows of metrics.jsonl. NaN where unknown.
struct RunSummary {
  std::int64_t rows = 0;
  double last_step = 0;
  double seconds = 0;  // in steps
  double tokens = 0;
  double tokens_per_s = 0;
  double median_step_s = 0;
  double loss = 0;  // of the last row
  struct Validation {
    std::string column;  // of the table
    double last = 0;
    double lowest = 0;
    double lowest_step = 0;
  };
  std::vector<Validation> validation;  // a set each, by the name of the column
  double device_peak_bytes = 0;
  double host_peak_bytes = 0;
  double nvme_used_bytes = 0;
  double process_peak_bytes = 0;
  double joules = 0;            // of the steps in which energy was measured
  double joules_per_token = 0;  // in these steps
};

RunSummary summary_of(const ReportRun& run);

// Returns the columns of validation losses. With named sets, validation_loss repeats the first of
// them and is left out.
std::vector<std::string> validation_columns(const MetricsTable& metrics);

// Returns "validation", or "validation NAME" for the set NAME.
std::string name_of_validation(const std::string& column);

// Returns "Validation loss", or "Validation loss of NAME".
std::string title_of_validation(const std::string& column);

// The work of a lane in all rows.
struct LaneTotal {
  std::string lane;
  double busy_s = 0;
  double bytes = 0;  // 0: the lane moves none
};

// Returns the lanes that were busy, in the order in which the program lists them.
std::vector<LaneTotal> lane_totals(const MetricsTable& metrics);

}  // namespace terrace::report

#pragma once

#include <string>
#include <vector>

#include "runtime/report/config_values.h"
#include "runtime/report/lane_trace.h"
#include "runtime/report/metrics_table.h"
#include "runtime/report/run_facts.h"

namespace terrace::report {

// All that a report knows of a run. Texts may have any bytes.
struct ReportRun {
  std::string directory;  // as it was given
  std::string name;       // the last part of the path; no two runs of a report have the same
  RunFacts facts;
  MetricsTable metrics;
  std::string config_text;
  ConfigValues config;
  LaneTrace trace;                   // empty without trace.json
  std::vector<std::string> remarks;  // what is missing or damaged: sentences in plain text
};

// Reads run directories. Missing or damaged files of a run become remarks. Throws ConfigError for a
// path that is no run directory.
std::vector<ReportRun> read_runs(const std::vector<std::string>& directories);

}  // namespace terrace::report

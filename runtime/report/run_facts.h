#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace terrace::report {

// The plan's memory in a tier.
struct TierMemory {
  std::string name;
  std::optional<double> budget_bytes;  // none: no limit
  double peak_bytes = 0;
  std::vector<std::pair<std::string, double>> accounts;  // in the order of the file
};

// The simulator's prediction, with the speeds that it rests on.
struct PredictedStep {
  double step_s = 0;
  double tokens_per_s = 0;
  std::string bottleneck;
  double flops_per_s = 0;
  double read_bytes_per_s = 0;  // of all drives together
  double write_bytes_per_s = 0;
  bool drive_is_remembered = false;  // an earlier run measured the drives
  bool ops_are_measured = false;
  double upload_bytes_per_s =
      0;  // this and those below were measured at the start; 0: they were not
  double download_bytes_per_s = 0;
  double collective_bytes_per_s = 0;
};

// The comparison of the plan with the first steps.
struct MeasuredStart {
  std::int64_t steps = 0;
  double step_s = 0;
  std::optional<double> predicted_step_s;
  double process_peak_bytes = 0;
  double planned_process_bytes = 0;
};

// The waits of the compute lane in all steps of the last session.
struct ComputeWaits {
  std::int64_t steps = 0;
  double seconds = 0;                                  // of these steps
  std::vector<std::pair<std::string, double>> causes;  // lane or "start", and seconds
};

// How the ranks of a run were divided.
struct RanksOfRun {
  std::int64_t ranks = 1;
  std::int64_t data = 1;
  std::int64_t islands = 1;
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
};

// The micro-batches that --rank-shares gave to each data-parallel rank.
struct SharesOfRanks {
  std::vector<double> micro_batches;
  std::string origin;  // in words: "measured"
};

// The content of run.json. Texts are as they stand in the file, so they may have any characters.
struct RunFacts {
  std::string version;
  std::string started;
  std::vector<std::pair<std::string, std::string>> host;
  std::vector<std::string> command_line;
  std::string program;  // the plan as the console printed it
  std::string reasons;  // JSON text, empty where there is none
  std::vector<TierMemory> memory;
  std::optional<RanksOfRun> mesh;  // of a run with several ranks
  std::optional<SharesOfRanks> shares;
  std::optional<PredictedStep> prediction;
  std::optional<MeasuredStart> measured;
  std::optional<ComputeWaits> waits;
  std::string energy;  // what is measured, or why nothing is
};

// Reads run.json. Parts of a wrong type count as missing. A file that is not there or not JSON
// gives a sentence in `remarks`, in plain text.
RunFacts read_run_facts(const std::string& path, std::vector<std::string>& remarks);

}  // namespace terrace::report

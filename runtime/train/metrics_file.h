#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "memory/ledger.h"
#include "runtime/step/lane_executor.h"
#include "runtime/train/event_file.h"
#include "runtime/train/noise_schedule.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/validation_loss.h"

namespace terrace {

// One row of metrics.jsonl.
struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double loss_scale = 1;
  bool was_skipped = false;  // gradients overflowed; their norm is then infinite
  std::optional<RouterFigures> router = std::nullopt;  // of a model that has experts
  NoiseFigures noise = {};  // of a run that measures the gradient noise scale
  std::int64_t tokens = 0;
  double step_s = 0;
  double time_s = 0;  // when the row was written, since 1970
  std::optional<double> flops_utilisation =
      std::nullopt;  // a share of the stated speed of products, if known
  // Bytes are counted for the step's ops, whenever these ran. Busy times are counted within the
  // step's time, and within the drain if one follows the step.
  RunTotals totals = {};
  RankWaits waits = {};                         // empty with one rank, and where they are not known
  std::vector<ValidationLoss> validation = {};  // empty: no evaluation belongs to the step
};

// Returns whether the last row of run_dir/metrics.jsonl is the row of `step` and has no validation
// loss.
bool lacks_validation_loss(const std::string& run_dir, std::int64_t step);

// Returns the step of the last row of run_dir/metrics.jsonl; 0 where there is none.
std::int64_t last_step_in_rows(const std::string& run_dir);

// metrics.jsonl of a run: one JSON object per step, flushed line by line. The numbers of each row
// also go to TensorBoard's file (EventFile), under the same keys. A number inside an object, such
// as busy_s, goes under both keys with a "/" between them.
class MetricsFile {
 public:
  // Opens run_dir/metrics.jsonl for appending; rows after `last_step` are dropped first. If
  // `last_step` is 0, the run does not go on from the rows that it finds: they are appended to
  // metrics.jsonl.before. Throws IoError.
  MetricsFile(const std::string& run_dir, std::int64_t last_step, const Ledger& ledger);
  void write(const StepMetrics& metrics);
  // Adds the losses of an evaluation to the last row of the file, which has none. Throws IoError.
  void add_to_last_row(const std::vector<ValidationLoss>& validation);
  // Makes all rows written so far survive a power cut. Throws IoError.
  void sync();

 private:
  std::string path_;
  Ledger ledger_;
  std::ofstream stream_;
  EventFile events_;
  // Whether a counter of energy has moved. Some virtual machines have counters that stand still,
  // and rows with 0 J would look like a measurement.
  bool has_energy_ = false;
};

}  // namespace terrace

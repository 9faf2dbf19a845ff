#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "memory/ledger.h"
#include "runtime/step/lane_executor.h"
#include "runtime/train/event_file.h"
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
  std::int64_t tokens = 0;
  double step_s = 0;
  double time_s = 0;  // when the row was written, since 1970
  std::optional<double> flops_utilisation =
      std::nullopt;  // of the products' stated speed, where that is known
  // Bytes are those of the step's ops, whenever they ran; busy times those of its time, and of the
  // drain where one follows it.
  RunTotals totals = {};
  std::vector<ValidationLoss> validation = {};  // empty: no evaluation belongs to the step
};

// Whether the last row of run_dir/metrics.jsonl is that of `step` and has no validation loss.
bool lacks_validation_loss(const std::string& run_dir, std::int64_t step);

// The step of the last row of run_dir/metrics.jsonl; 0 where there is none.
std::int64_t last_step_in_rows(const std::string& run_dir);

// metrics.jsonl of a run: one JSON object per step, flushed line by line. The numbers of each row
// go to TensorBoard's file too (EventFile), under the keys that they have here; of an object in it,
// as busy_s, both keys with a "/" between them.
class MetricsFile {
 public:
  // Opens run_dir/metrics.jsonl for appending; rows after `last_step` are dropped first. What a run
  // finds that does not go on from it (0) is kept in metrics.jsonl.before, behind what is there.
  // Throws IoError.
  MetricsFile(const std::string& run_dir, std::int64_t last_step, const Ledger& ledger);
  void write(const StepMetrics& metrics);
  // Adds the losses of an evaluation to the last row of the file, which has none. Throws IoError.
  void add_to_last_row(const std::vector<ValidationLoss>& validation);
  // What was written survives a power cut. Throws IoError.
  void sync();

 private:
  std::string path_;
  Ledger ledger_;
  std::ofstream stream_;
  EventFile events_;
};

}  // namespace terrace

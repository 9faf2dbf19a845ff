#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/checkpoint/evaluation_history.h"
#include "runtime/train/rank_group.h"

namespace terrace {

// Remembers which of a run's states had the lowest loss on the first validation set, for
// --keep-best and --early-stopping-patience. The first rank keeps the record in best.json of the
// run directory; all ranks have the same record and make the same calls. docs/checkpoint.md
// describes the file.
class BestRecord {
 public:
  struct Setting {
    bool keeps_best = false;     // --keep-best
    std::int64_t patience = 0;   // --early-stopping-patience; 0: the run does not end early
    std::string set = {};        // the name of the first set; empty where it has none
    std::uint64_t set_hash = 0;  // of the samples of it that are evaluated
  };

  explicit BestRecord(Setting setting) : setting_(std::move(setting)) {}

  // Returns whether the options ask for the best state or for an early end. If not, add() does
  // nothing.
  bool is_kept() const { return setting_.keeps_best || setting_.patience > 0; }

  // The checkpoint that a run goes on from.
  struct Resumed {
    const std::string& run_dir;
    std::int64_t step = 0;  // of the checkpoint
    std::optional<EvaluationHistory> history;
    bool is_in_place = false;  // the checkpoint is one of run_dir's
  };
  // Takes over the evaluations up to the step from the checkpoint or from run_dir/best.json,
  // whichever has the later one. In place, the checkpoint that the run before has kept stays, even
  // where the options no longer ask for it. Returns a line for the console where the search for the
  // best state does not go on from the run before, else nothing. Throws IoError.
  std::string resume(const Resumed& from, const RankGroup& ranks);

  // Adds an evaluation. Returns whether the state has to be kept as the best.
  bool add(std::int64_t step, double loss);
  // Notes that the state after `step`, the one evaluated last, is now kept as a checkpoint.
  void set_kept(std::int64_t step) { kept_step_ = step, kept_loss_ = last_loss_; }
  // Returns the step whose checkpoint must not be removed; 0: none.
  std::int64_t kept_step() const { return kept_step_; }
  // Returns whether the run ends because too many evaluations in a row had no lower loss.
  bool is_out_of_patience() const {
    return setting_.patience > 0 && history_.without_better >= setting_.patience;
  }
  // Returns the reason for the early end, for the console.
  std::string describe_end() const;
  // Names the checkpoint that is kept as the best, for the console; empty where there is none.
  std::string describe_kept(const std::string& run_dir) const;
  // Returns the history that a checkpoint keeps; none where there was no evaluation, or the options
  // do not ask for one.
  std::optional<EvaluationHistory> history() const;

  // Writes run_dir/best.json; where there is nothing to keep, removes it. Where the options ask for
  // nothing and the checkpoint that the file names stays, the file stays as it is. Throws IoError.
  void write(const std::string& run_dir) const;

 private:
  void take(const std::string& best_json, const Resumed& from);
  std::string name_of_loss() const;

  Setting setting_;
  EvaluationHistory history_;
  double last_loss_ = 0;
  std::int64_t kept_step_ = 0;
  double kept_loss_ = 0;
};

// Returns the step after which the run in run_dir ended early because `patience` evaluations had no
// lower loss, according to its best.json; none where it did not, or where patience is 0.
std::optional<std::int64_t> step_of_early_end(const std::string& run_dir, std::int64_t patience);

}  // namespace terrace

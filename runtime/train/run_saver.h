#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_companions.h"
#include "runtime/checkpoint/weight_types.h"
#include "runtime/train/frozen_origin.h"
#include "runtime/train/ranked_state.h"
#include "runtime/train/train_console.h"

namespace terrace {

// Where a run saves, and what it is that is saved.
struct SavedRun {
  std::string directory;  // of the run
  const ModelConfig& model;
  const std::vector<UnitLayout>& layout;
  const UpdateRule& rule;
  std::int64_t keep_last = 0;           // checkpoints; 0: all
  WeightTypes types;                    // of final/
  std::string base_model;               // of an adapter, as its files name it
  FrozenOrigin* frozen = nullptr;       // borrowed; where some parameters do not train
  std::vector<HfCompanion> companions;  // go into final/ as they are
  bool is_first_rank = true;            // which writes; the others give it their parts of the state
};

// Saves the state of a run in its directory, as checkpoints and as a Hugging Face directory. With
// several ranks all do the same calls in the same order; only when drained. State that is not
// finite is not saved: the last update is followed by no step that would see what it did.
class RunSaver {
 public:
  // Borrows all.
  RunSaver(const SavedRun& run, RankedState& state, TrainConsole& console)
      : run_(run), state_(state), console_(console) {}

  // Writes checkpoint-<progress.step>, of which `progress` is asked of the first rank alone.
  // Returns its path, empty on other ranks. Throws IoError, NotFinite.
  std::string save(const CheckpointProgress& progress);
  // Removes what --keep-last does not keep, and that is not of `best_step` (0: none is).
  void remove_old(std::int64_t best_step);
  // Writes final/: of a run that trains an adapter, this alone. Returns its path, empty on other
  // ranks. Throws IoError, NotFinite, ConfigError for a value that its type does not hold.
  std::string export_weights(std::int64_t step);

  // Whether what was thrown came from reading the state: then nothing can be made of it.
  bool state_is_unreadable() const { return is_reading_; }

 private:
  void read_finite(std::int64_t step, StateField field, const UnitLayout& unit, std::int64_t begin,
                   std::span<float> out);
  std::int64_t elements() const;  // of all that trains

  SavedRun run_;
  RankedState& state_;
  TrainConsole& console_;
  std::int64_t read_elements_ = 0;  // of what is being saved
  bool is_reading_ = false;
};

}  // namespace terrace

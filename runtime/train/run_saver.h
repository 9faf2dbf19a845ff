#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/log.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_companions.h"
#include "runtime/checkpoint/weight_types.h"
#include "runtime/step/home_gate.h"
#include "runtime/train/best_record.h"
#include "runtime/train/checkpoint_writer.h"
#include "runtime/train/frozen_origin.h"
#include "runtime/train/rank_group.h"
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
  std::int64_t keep_automatic = 0;      // of those that are automatic; 0: all that keep_last keeps
  std::int64_t resumed_step = 0;        // of a checkpoint that was named to go on from; 0: none
  std::size_t staging_bytes = 0;        // memory for state on its way; two pieces at the least
  WeightTypes types;                    // of final/
  std::string base_model;               // of an adapter, as its files name it
  const BestRecord& best;               // says which checkpoint is not removed
  FrozenOrigin* frozen = nullptr;       // borrowed; where some parameters do not train
  std::vector<HfCompanion> companions;  // go into final/ as they are
  FileSystem& disk = system_files();    // of checkpoints
  // Of an engine that has the whole state: it lets state be read beside the steps. Null where the
  // ranks' states are read together, between steps.
  HomeGate* gate = nullptr;
  std::vector<std::int32_t> first_units = {};  // that the steps change first
  bool ranks_are_threads = false;              // of this process, which lives on when they end
};

// Saves the state of a run in its directory, as checkpoints and as a Hugging Face directory. With
// several ranks all do the same calls in the same order; only when drained. State that is not
// finite is not saved: the last update is followed by no step that would see what it did.
class RunSaver {
 public:
  // Borrows all.
  RunSaver(const SavedRun& run, const RankGroup& ranks, RankedState& state, TrainConsole& console,
           Log& log)
      : run_(run), ranks_(ranks), state_(state), console_(console), log_(log) {}

  // Whether the checkpoint of the step is there, as far as this run has saved it or gone on from
  // it.
  bool has(std::int64_t step) const { return saved_step_ == step; }
  void set_saved(std::int64_t step) { saved_step_ = step; }

  // Writes checkpoint-<progress.step> if it is not there, says so, and removes what --keep-last
  // does not keep. Throws IoError, NotFinite.
  void save(const CheckpointProgress& progress);
  // Likewise, in a run that goes on without it where the drive is full: that is told in the log.
  // Returns whether the checkpoint is there. Tries once for a step. Throws NotFinite, and IoError
  // for other failures.
  bool try_save(const CheckpointProgress& progress);
  // Likewise, beside the next steps, through SavedRun::staging_bytes of memory. With a gate the
  // state is read beside them too; without one it is read before this returns, which takes as long
  // as the drive where that memory is less than the state. What fails later is told or thrown by
  // the next call. An automatic checkpoint is passed over where another one is still being written,
  // and any failure to write it is told in the log.
  void begin_save(const CheckpointProgress& progress);
  // Says that the one that was begun is there, when it is. For the first rank; the others may call
  // it.
  void poll();
  // For a run that ends by `failure`: completes what was begun on this rank, and tells what became
  // of it. Ranks that are threads are told of the failure before. Those that are processes are not:
  // when one ends the others are ended, this one too.
  void complete_after(const std::exception& failure) noexcept;
  // Throws what try_save() or begin_save() met for the step, on the rank that met it.
  void rethrow_unsaved(std::int64_t step) const;
  // Removes the checkpoints that --keep-last does not keep, and automatic ones beyond
  // keep_automatic; but not the best one.
  void remove_old();

  // Writes final/, of a run that trains an adapter this alone, and says so. Throws IoError,
  // NotFinite, ConfigError for a value that its type does not hold.
  void export_weights(std::int64_t step);
  // Likewise; where it throws for want of room, rights or a type that holds the values, `save` is
  // called before on the first rank, so that what was learned is not lost.
  void export_or_save(std::int64_t step, FunctionRef<void()> save);

 private:
  CheckpointedModel checkpointed() const {
    return {run_.model, run_.layout, run_.rule, run_.first_units};
  }
  CheckpointProgress with_frozen(const CheckpointProgress& progress);
  // On the first rank.
  void write(const CheckpointProgress& progress);
  void start_writing(const CheckpointProgress& progress);
  // Keeps the problem where the drive of the files is full or the checkpoint is automatic, and
  // throws any other.
  void take_problem(std::int64_t step, const std::exception_ptr& problem, bool is_of_reading);
  void take_result(const CheckpointWriter::Result& result);
  // Waits for the checkpoint that was begun. On all ranks, which hear from each other meanwhile.
  void finish_begun();
  void read_finite(std::int64_t step, StateField field, const UnitLayout& unit, std::int64_t begin,
                   std::span<float> out);
  std::int64_t elements() const;  // of all that trains

  SavedRun run_;
  const RankGroup& ranks_;
  RankedState& state_;
  TrainConsole& console_;
  Log& log_;
  std::int64_t saved_step_ = -1;    // of the latest checkpoint in the run directory
  std::int64_t failed_step_ = -1;   // that was tried last and is not there
  std::exception_ptr problem_;      // of that; on the first rank
  std::int64_t begun_step_ = -1;    // that is being written, on all ranks; -1: none is
  bool is_automatic_ = false;       // the checkpoint that was begun or saved last
  std::int64_t read_elements_ = 0;  // of what is being saved
  bool is_reading_ = false;
  CheckpointWriter writer_;  // of the first rank; last: its threads use the above
};

}  // namespace terrace

#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/log.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_companions.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/checkpoint/weight_types.h"
#include "runtime/step/home_gate.h"
#include "runtime/train/best_record.h"
#include "runtime/train/checkpoint_writer.h"
#include "runtime/train/frozen_origin.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/ranked_state.h"
#include "runtime/train/train_console.h"

namespace terrace {

// Where and what a run saves.
struct SavedRun {
  std::string directory;  // of the run
  const ModelConfig& model;
  const std::vector<UnitLayout>& layout;
  const UpdateRule& rule;
  std::int64_t keep_last = 0;           // checkpoints; 0: all
  std::int64_t keep_automatic = 0;      // automatic checkpoints; 0: all that keep_last keeps
  std::int64_t resumed_step = 0;        // of the checkpoint that --resume named; 0: none
  std::size_t staging_bytes = 0;        // memory for state on its way; two pieces at least
  WeightTypes types;                    // of final/
  std::string base_model;               // an adapter's base, as its files name it
  const BestRecord& best;               // names the checkpoint that is never removed
  FrozenOrigin* frozen = nullptr;       // borrowed; where some parameters do not train
  std::vector<HfCompanion> companions;  // go into final/ as they are
  FileSystem& disk = system_files();    // of checkpoints
  // The gate of an engine that has the whole state: it lets the state be read beside the steps.
  // Null where the ranks' states are read together, between steps.
  HomeGate* gate = nullptr;
  std::vector<std::int32_t> first_changed = {};  // the units that the steps change first
  bool ranks_are_threads = false;                // threads of this process, which outlives them
};

// Saves the state of a run in its directory, as checkpoints and as a Hugging Face directory. With
// several ranks, all make the same calls in the same order, and only when the engine is drained.
// Errors of coded gradients are saved too, where the ranks keep some. State that is not finite is
// not saved: no step runs after the last update, so nothing else would notice that it has spoiled
// the state.
class RunSaver {
 public:
  // Borrows everything.
  RunSaver(const SavedRun& run, const RankGroup& ranks, RankedState& state, TrainConsole& console,
           Log& log);

  // Returns whether this run has saved the checkpoint of the step or has gone on from it.
  bool has(std::int64_t step) const { return saved_step_ == step; }
  void set_saved(std::int64_t step) { saved_step_ = step; }

  // Writes checkpoint-<progress.step> if it is not there, says so, and removes the checkpoints that
  // --keep-last does not keep. Throws IoError, NotFinite.
  void save(const CheckpointProgress& progress);
  // Does the same, but if the drive is full the run goes on without the checkpoint and the log says
  // so. Returns whether the checkpoint is there. Tries only once for a step. Throws NotFinite, and
  // IoError for other failures.
  bool try_save(const CheckpointProgress& progress);
  // Does the same as try_save(), but writes beside the next steps, through SavedRun::staging_bytes
  // of memory. With a gate, the state is read beside the steps too. Without one it is read before
  // this returns, which takes as long as the drive needs if that memory is smaller than the state.
  // Errors of coded gradients make it write all before it returns.
  // A later failure is reported or thrown by the next call. An automatic checkpoint is skipped
  // where another one is still being written, and any failure to write it goes to the log.
  void begin_save(const CheckpointProgress& progress);
  // Prints that the checkpoint that was begun is there, once it is. For the first rank; the others
  // may call it too.
  void poll();
  // For a run that ends by `failure`: completes the checkpoint that was begun on this rank, and
  // reports the outcome. Ranks that are threads are told of the failure first. Ranks that are
  // processes are not told: when one of them ends, the others are ended, including this one.
  void complete_after(const std::exception& failure) noexcept;
  // Throws the problem that try_save() or begin_save() met at the step, on the rank that met it.
  void rethrow_unsaved(std::int64_t step) const;
  // Removes the checkpoints that --keep-last does not keep, and automatic ones beyond
  // keep_automatic; but not the best one.
  void remove_old();

  // Calls `use` with a function that gives the parameters after the step, as final/ would have
  // them. For a run of one rank. Throws NotFinite, IoError, and what `use` throws.
  void with_parameters(std::int64_t step, FunctionRef<void(FetchParameter)> use);

  // Writes final/ and says so; for a run that trains an adapter, final/ holds the adapter alone.
  // Throws IoError, NotFinite, and ConfigError for a value that its type does not hold.
  void export_weights(std::int64_t step);
  // Does the same, but before it throws because room or rights are missing or the type does not
  // hold the values, it calls `save` on the first rank, so that the training is not lost.
  void export_or_save(std::int64_t step, FunctionRef<void()> save);

 private:
  CheckpointedModel checkpointed() const {
    return {run_.model, run_.layout, run_.rule, run_.first_changed, errors_ ? &*errors_ : nullptr};
  }
  CheckpointProgress with_frozen(const CheckpointProgress& progress);
  // These four are called on the first rank.
  void write(const CheckpointProgress& progress);
  void start_writing(const CheckpointProgress& progress);
  // Does the same where a checkpoint can be written beside the steps and there is memory for it.
  // Returns whether it does.
  bool try_start_writing(const CheckpointProgress& progress);
  // Starts to write beside the steps, or writes at once where that is not possible.
  void begin_or_write(const CheckpointProgress& progress);
  // Keeps the problem where the drive of the files is full or the checkpoint is automatic, and
  // throws any other problem.
  void take_problem(std::int64_t step, const std::exception_ptr& problem, bool is_of_reading);
  void take_result(const CheckpointWriter::Result& result);
  // Waits for the checkpoint that was begun. All ranks call it, and hear from each other meanwhile.
  void finish_begun();
  void read_finite(std::int64_t step, StateField field, const UnitLayout& unit, std::int64_t begin,
                   std::span<float> out);
  void read_errors(std::int32_t rank, std::uint64_t begin, std::span<std::byte> out);
  std::int64_t elements() const;  // of all tensors that train

  SavedRun run_;
  const RankGroup& ranks_;
  RankedState& state_;
  std::optional<CheckpointedErrors> errors_;  // none where no rank keeps errors
  TrainConsole& console_;
  Log& log_;
  std::int64_t saved_step_ = -1;    // of the latest checkpoint in the run directory
  std::int64_t failed_step_ = -1;   // the last step tried without success
  std::exception_ptr problem_;      // at that step; on the first rank
  std::int64_t begun_step_ = -1;    // being written, on all ranks; -1: none
  bool is_automatic_ = false;       // the checkpoint begun or saved last
  std::int64_t read_elements_ = 0;  // of the state being saved
  bool is_reading_ = false;
  CheckpointWriter writer_;  // used by the first rank; last, as its threads use the above
};

}  // namespace terrace

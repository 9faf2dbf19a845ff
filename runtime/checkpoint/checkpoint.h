#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "optim/loss_scale.h"
#include "optim/update_rules.h"
#include "runtime/checkpoint/error_files.h"
#include "runtime/checkpoint/evaluation_history.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/frozen_parameters.h"
#include "runtime/checkpoint/listed_file.h"
#include "runtime/checkpoint/noise_record.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/verified_file.h"
#include "runtime/checkpoint/weight_types.h"
#include "runtime/model/model_config.h"
#include "runtime/model/state_source.h"

// Native checkpoints: a directory checkpoint-N with, per unit and field, one safetensors file of
// fp32 tensors under their Hugging Face names ("master-00003.safetensors"; matrices as [out, in]),
// the model's config.json, and manifest.json, which is written last: a directory without it is not
// a checkpoint. docs/checkpoint.md has the format.
namespace terrace {

// The facts that a run needs besides the tensors to go on where it was.
struct CheckpointProgress {
  std::int64_t step = 0;     // the last one that is complete
  std::int64_t samples = 0;  // training samples used up
  // The numbers that the order of the samples depends on.
  std::uint64_t seed = 0;
  std::int64_t sequence_length = 0;
  std::int64_t training_tokens = 0;
  // The loss scale of fp16 runs, and of runs that went on from an fp16 run.
  std::optional<LossScaleState> loss_scale = std::nullopt;
  // The device that computed the last step: "cpu" or "cuda". Empty in checkpoints that do not say.
  std::string device = {};
  // The other things that its bits depended on: program, libraries, instruction set or GPU. Empty
  // in checkpoints that do not say.
  std::string arithmetic = {};
  // Dataset::training_hash(). None in checkpoints that do not say.
  std::optional<std::uint64_t> data_hash = std::nullopt;
  // The types of the weights that the run started from; none where it started from random ones.
  std::optional<WeightTypes> loaded_types = std::nullopt;
  // The evaluations of runs that keep the best state, or that end early; none before their first
  // evaluation.
  std::optional<EvaluationHistory> evaluations = std::nullopt;
  // Where to find the parameters that do not train; none where all train.
  std::optional<FrozenReference> frozen = std::nullopt;
  // The micro-batches of a step by data-parallel rank, as they were measured; empty where they were
  // not.
  std::vector<std::int64_t> rank_micro_batches = {};
  // The gradient noise so far; none in runs that do not measure it.
  std::optional<NoiseRecord> gradient_noise = std::nullopt;
  // Whether it was saved only because time had passed, so that a later one may take its place.
  bool is_automatic = false;
};

// Gives elements of a unit's flat sequence; see StateSource::read.
using FetchState = FunctionRef<void(StateField field, const UnitLayout& unit, std::int64_t begin,
                                    std::span<float> out)>;

// The model that a checkpoint is of. Borrows all but the order.
struct CheckpointedModel {
  const ModelConfig& config;
  const std::vector<UnitLayout>& layout;  // of the whole model
  const UpdateRule& rule;                 // whose slots there are
  // The units that are written before the others, by their index. They need not be all units, nor
  // train.
  std::vector<std::int32_t> first_changed = {};
  const CheckpointedErrors* errors = nullptr;  // null where the run keeps none

  // Returns the units that train, in the order in which they are written.
  std::vector<const UnitLayout*> units() const;
};

// State is fetched in pieces of this many elements. Only the last piece of a unit's field may be
// smaller.
inline constexpr std::int64_t kCheckpointPieceElements = 1 << 20;

// Returns the bytes that a checkpoint takes, rounded up: the bytes of its tensors, and a bound for
// its names and checksums, and the files of errors.
std::uint64_t checkpoint_bytes(const CheckpointedModel& model);

// Fetches the state unit by unit, field by field, front to back, and then the errors, and writes
// run_dir/checkpoint-<step>: under another name first, then fsync and rename, so that a crash at
// any moment leaves either the whole checkpoint or none, and earlier ones untouched. The write is
// not begun where the file system says that it has no room for checkpoint_bytes(). If it throws, it
// removes what it has written. Returns the checkpoint's path. Throws IoError (is_full_disk()).
std::string write_checkpoint(const std::string& run_dir, const CheckpointProgress& progress,
                             const CheckpointedModel& model, FetchState fetch,
                             FileSystem& disk = system_files());

// Returns the complete checkpoint with the highest step in a run directory, if there is one.
std::optional<std::string> latest_checkpoint(const std::string& run_dir,
                                             FileSystem& disk = system_files());
// Returns the complete checkpoint before that one, if there is one.
std::optional<std::string> earlier_checkpoint(const std::string& run_dir,
                                              FileSystem& disk = system_files());
bool is_checkpoint(const std::string& directory, FileSystem& disk = system_files());
// Only for the owner of the run directory's lock. Clears up after a crash in the middle of a save:
// removes half-written directories, and moves a checkpoint back that was moved aside for a newer
// one of the same step, if the newer one is not there. The checkpoints that are found afterwards
// survive a power cut.
void recover_run_directory(const std::string& run_dir, FileSystem& disk = system_files());
// Returns the names of the complete checkpoints of steps after `step`, in their order.
std::vector<std::string> later_checkpoints(const std::string& run_dir, std::int64_t step,
                                           FileSystem& disk = system_files());
// Removes the complete checkpoints of steps after `step`: a run that went back to that step has
// abandoned them.
void remove_later_checkpoints(const std::string& run_dir, std::int64_t step,
                              FileSystem& disk = system_files());
// Removes all complete checkpoints except the `keep` latest and the one of `best_step`, oldest
// first.
void remove_old_checkpoints(const std::string& run_dir, std::int64_t keep,
                            FileSystem& disk = system_files(), std::int64_t best_step = 0);

// Returns the steps of the complete checkpoints whose manifests can be read and say that they are
// automatic, ascending.
std::vector<std::int64_t> automatic_checkpoints(const std::string& run_dir,
                                                FileSystem& disk = system_files());
// Removes all automatic checkpoints except the `keep` latest of them and the ones of the steps
// `needed`, oldest first.
void remove_old_automatic_checkpoints(const std::string& run_dir, std::int64_t keep,
                                      std::span<const std::int64_t> needed,
                                      FileSystem& disk = system_files());

// A checkpoint to read. open() verifies the sizes of all files. Each piece of a file is verified
// when it is read, before a byte of it is given out, so that a rank reads only the pieces that
// contain its part. If a checkpoint lists no pieces for a file, open() verifies the whole file.
// Reads are thread-safe.
class Checkpoint final : public StateSource {
 public:
  // Throws ConfigError if there is no checkpoint at `directory`, CorruptData for a manifest that
  // cannot be read.
  explicit Checkpoint(const std::string& directory, FileSystem& disk = system_files());

  const std::string& directory() const { return directory_; }
  const CheckpointProgress& progress() const { return progress_; }
  // Returns a hash of the manifest, and thereby of everything in the checkpoint.
  std::uint64_t fingerprint() const { return fingerprint_; }
  // Returns the model, with the adapter that trains where there is one.
  const ModelConfig& model() const { return model_; }
  const UpdateRule& rule() const { return *rule_; }
  // Opens the files for a model and verifies their headers. Opens the frozen parameters as
  // open_frozen() does, and throws its errors. Throws ConfigError, which names the tensor, where
  // the checkpoint lacks a tensor or has it in another shape. Throws CorruptData, which names the
  // file, where a file's size or checksum is not as it was written.
  void open(const std::vector<UnitLayout>& layout, const FrozenSearch& search = {});

  // Gives away the open source of the frozen parameters, after the last read(). Null where all
  // parameters train.
  std::unique_ptr<StateSource> take_frozen() { return std::move(frozen_); }

  // Returns whose errors of coded gradients there are; none in most checkpoints.
  const std::optional<GradientErrors>& gradient_errors() const { return gradient_errors_; }
  // Opens the file of a rank that has errors. Its reads are verified as read() is.
  std::unique_ptr<OpenFile> open_errors(std::int32_t rank);

  // Throws CorruptData, which names file, offset and length, for a piece that is not as it was
  // written; IoError.
  void read(StateField field, const UnitLayout& unit, std::int64_t begin,
            std::span<float> out) const override;

 private:
  // Reads config.json, which the manifest lists. Gives the model this name and adapter.
  void load_model(const std::string& name, AdapterOptions adapter);
  bool is_frozen(const ParameterTensor& tensor) const;
  void open_frozen(const FrozenSearch& search);
  std::unique_ptr<SafetensorsFile> checked(std::unique_ptr<OpenFile> opened,
                                           const std::string& name, const UnitLayout& unit) const;
  const SafetensorsFile& file_of(StateField field, const UnitLayout& unit) const;

  FileSystem& disk_;
  std::string directory_;
  CheckpointProgress progress_;
  std::uint64_t fingerprint_ = 0;
  ModelConfig model_;
  const UpdateRule* rule_ = nullptr;
  std::optional<GradientErrors> gradient_errors_;
  std::vector<ListedFile> listed_;
  PieceCache cache_;
  // By unit and field; a unit that is frozen has none.
  std::map<std::pair<std::int64_t, StateField>, std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::string> frozen_names_;  // sorted
  std::unique_ptr<StateSource> frozen_;
};

}  // namespace terrace

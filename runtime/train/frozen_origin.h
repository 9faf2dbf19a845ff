#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_directory.h"

namespace terrace {

// The source of a run's frozen parameters while the run lasts: their exact values, for checkpoints
// and the result. The engine's own copy is in the type that computes.
class FrozenOrigin {
 public:
  // For a run whose parameters all train.
  FrozenOrigin() = default;
  // For a run that starts from the weights in `directory`. Reads all frozen tensors and hashes
  // them, so that later changes there are found. If biases of the choice of experts are all that is
  // frozen, reference() stores them, because a run that trains everything else should not need the
  // directory any more. Closes the weights where all parameters train.
  // Throws IoError.
  FrozenOrigin(const std::string& directory, std::unique_ptr<HfDirectory> weights,
               const std::vector<UnitLayout>& layout);
  // For random frozen parameters.
  explicit FrozenOrigin(std::unique_ptr<StateSource> state) : state_(std::move(state)) {}
  // For a run that goes on from an open checkpoint: takes the checkpoint's frozen parameters.
  // `is_own`: the checkpoint lies in the directory of this run.
  FrozenOrigin(Checkpoint& checkpoint, bool is_own);

  // Reads elements of a unit of the whole model's layout.
  void read(const UnitLayout& unit, std::int64_t begin, std::span<float> out) const {
    state_->read(StateField::kMaster, unit, begin, out);
  }
  // Throws CorruptData where weights of a model directory have changed since; IoError.
  void verify_weights() const;
  // Returns the reference to the frozen parameters that checkpoints in `run_dir` keep; none where
  // all train. The first call may store them in the run directory. Throws IoError.
  std::optional<FrozenReference> reference(const std::string& run_dir,
                                           const std::vector<UnitLayout>& layout);

 private:
  std::unique_ptr<HfDirectory> weights_;
  std::unique_ptr<StateSource> state_;  // uses the weights
  std::optional<FrozenReference> reference_;
};

}  // namespace terrace

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_directory.h"

namespace terrace {

// Where the frozen parameters of a run come from, while it lasts: exact, for checkpoints and the
// result. What the engine has of them is in the type that computes.
class FrozenOrigin {
 public:
  // Of a run whose parameters all train.
  FrozenOrigin() = default;
  // The weights in `directory`. Reads all that is frozen, to hash it, so that what changes there
  // later is found; closes them where all trains. Throws IoError.
  FrozenOrigin(const std::string& directory, std::unique_ptr<HfDirectory> weights,
               const std::vector<UnitLayout>& layout);
  // Random ones.
  explicit FrozenOrigin(std::unique_ptr<StateSource> state) : state_(std::move(state)) {}
  // Of an open checkpoint, whose frozen parameters it takes. `is_own`: it lies in the directory of
  // this run.
  FrozenOrigin(Checkpoint& checkpoint, bool is_own);

  // Elements of a unit of the whole model's layout.
  void read(const UnitLayout& unit, std::int64_t begin, std::span<float> out) const {
    state_->read(StateField::kMaster, unit, begin, out);
  }
  // Throws CorruptData where weights of a model directory have changed since; IoError.
  void verify_weights() const;
  // What checkpoints in `run_dir` say of them; none where all train. The first call may store them
  // in the run directory. Throws IoError.
  std::optional<FrozenReference> reference(const std::string& run_dir,
                                           const std::vector<UnitLayout>& layout);

 private:
  std::unique_ptr<HfDirectory> weights_;
  std::unique_ptr<StateSource> state_;  // uses the weights
  std::optional<FrozenReference> reference_;
};

}  // namespace terrace

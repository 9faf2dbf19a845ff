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
  // The weights in `directory`.
  FrozenOrigin(std::string directory, std::unique_ptr<HfDirectory> weights);
  // Random ones.
  explicit FrozenOrigin(std::unique_ptr<StateSource> state) : state_(std::move(state)) {}
  // An open checkpoint. `is_own`: it lies in the directory of this run.
  FrozenOrigin(std::unique_ptr<Checkpoint> checkpoint, bool is_own);

  // Elements of a unit of the whole model's layout.
  void read(const UnitLayout& unit, std::int64_t begin, std::span<float> out) const {
    state_->read(StateField::kMaster, unit, begin, out);
  }
  // What checkpoints in `run_dir` say of them; none where all train. The first call reads all of
  // them, to hash them, and may store them in the run directory. Throws IoError.
  std::optional<FrozenReference> reference(const std::string& run_dir,
                                           const std::vector<UnitLayout>& layout);

 private:
  std::string directory_;
  std::unique_ptr<HfDirectory> weights_;
  std::unique_ptr<StateSource> state_;  // uses the weights
  std::optional<FrozenReference> reference_;
};

}  // namespace terrace

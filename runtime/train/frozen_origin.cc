#include "runtime/train/frozen_origin.h"

#include <utility>

#include "runtime/checkpoint/weight_state.h"

namespace terrace {

FrozenOrigin::FrozenOrigin(std::string directory, std::unique_ptr<HfDirectory> weights)
    : directory_(std::move(directory)),
      weights_(std::move(weights)),
      state_(std::make_unique<WeightState>(*weights_)) {}

// Files of another run are stored anew: a run directory has all that its checkpoints need.
FrozenOrigin::FrozenOrigin(std::unique_ptr<Checkpoint> checkpoint, bool is_own) {
  const std::optional<FrozenReference>& known = checkpoint->progress().frozen;
  if (known && (is_own || known->is_model_directory())) reference_ = known;
  state_ = std::move(checkpoint);
}

std::optional<FrozenReference> FrozenOrigin::reference(const std::string& run_dir,
                                                       const std::vector<UnitLayout>& layout) {
  if (reference_ || frozen_parameters(layout).empty()) return reference_;
  reference_ = weights_ != nullptr ? refer_to_weights(directory_, *weights_, layout)
                                   : store_frozen(run_dir, layout, *state_);
  return reference_;
}

}  // namespace terrace

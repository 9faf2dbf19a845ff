#include "runtime/train/frozen_origin.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "runtime/checkpoint/weight_state.h"

namespace terrace {
namespace {

// Returns whether all that is frozen are the biases of the choice of experts.
bool has_only_choice_biases(const std::vector<UnitLayout>& layout) {
  return std::ranges::all_of(layout, [](const UnitLayout& unit) {
    return std::ranges::all_of(unit.tensors, [](const ParameterTensor& tensor) {
      return tensor.trainable || tensor.kind == ParameterKind::kChoiceBias;
    });
  });
}

}  // namespace

FrozenOrigin::FrozenOrigin(const std::string& directory, std::unique_ptr<HfDirectory> weights,
                           const std::vector<UnitLayout>& layout) {
  if (frozen_parameters(layout).empty()) return;
  weights_ = std::move(weights);
  state_ = std::make_unique<WeightState>(*weights_);
  if (has_only_choice_biases(layout)) return;  // reference() stores them
  reference_ = refer_to_weights(directory, *weights_, layout);
}

// Files of another run are stored again here: a run directory holds everything that its checkpoints
// need.
FrozenOrigin::FrozenOrigin(Checkpoint& checkpoint, bool is_own) : state_(checkpoint.take_frozen()) {
  const std::optional<FrozenReference>& known = checkpoint.progress().frozen;
  if (known && (is_own || known->is_model_directory())) reference_ = known;
}

void FrozenOrigin::verify_weights() const {
  // A checkpoint's frozen parameters were verified when they were opened.
  if (weights_ == nullptr || !reference_) return;
  for (const auto& [name, hash] : reference_->tensors) {
    if (weights_->hash_of(name) == hash) continue;
    throw CorruptData(fmt::format("{}: the frozen tensor {} has changed since the run began",
                                  weights_->file_of(name), name),
                      "restore it as it was, and continue from the last checkpoint");
  }
}

std::optional<FrozenReference> FrozenOrigin::reference(const std::string& run_dir,
                                                       const std::vector<UnitLayout>& layout) {
  if (reference_ || frozen_parameters(layout).empty()) return reference_;
  reference_ = store_frozen(run_dir, layout, *state_);
  return reference_;
}

}  // namespace terrace

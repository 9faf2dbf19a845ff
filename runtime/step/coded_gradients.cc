#include "runtime/step/coded_gradients.h"

#include "runtime/step/coded_exchange.h"

namespace terrace {

// Errors whose home is elsewhere come beside the gradient, and go back behind the encoding.
Range CodedGradients::reduce(Mover& mover, std::int32_t group, std::int64_t chunk,
                             const Range& whole, const Range& target) {
  const StepModel& model = state_.model;
  const auto number = static_cast<std::int32_t>(chunk);
  if (!model.keeps_errors()) {
    return reduce_coded(mover, state_.draft, model, {whole, {}, target, number});
  }
  const Mover::Labels labels{model.owner(group), group, -1, kOfThisStep, Account::kErrors};
  const Range home = errors_.chunk(group, chunk);
  const Range errors = state_.brought(labels, number, home, state_.draft.tier_of(whole));
  reduce_coded(mover, state_.draft, model, {whole, errors, target, number});
  if (errors.buffer != home.buffer) {
    Mover back = state_.store(labels);
    back.copy(errors, home, number);
  }
  return target;
}

}  // namespace terrace

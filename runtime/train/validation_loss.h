#pragma once

#include <string>
#include <vector>

namespace terrace {

// The loss of one set of an evaluation, in nats per token.
struct ValidationLoss {
  std::string set;  // its name; empty where it has none
  double loss = 0;
};

// The name of the first set's loss in metrics.jsonl.
inline constexpr const char* kValidationLossKey = "validation_loss";

// Returns the name of a set's loss in metrics.jsonl and on the console: validation_loss/NAME, or
// validation_loss for the set without a name.
inline std::string validation_loss_key(const std::string& set) {
  return set.empty() ? kValidationLossKey : std::string(kValidationLossKey) + "/" + set;
}

}  // namespace terrace

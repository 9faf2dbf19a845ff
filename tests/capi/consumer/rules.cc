#include <cmath>
#include <vector>

#include "optim/update_rules.h"

// Makes one update with a rule of the installed library, SGD, on a single parameter.
int main() {
  using namespace terrace;
  const UpdateRule& rule = *find_update_rule("sgd");
  std::vector<float> parameter = {1};
  std::vector<float> gradient = {0.5F};
  std::vector<float> momentum = {0};
  const StepScalars scalars = {.learning_rate = 0.5F};
  ParameterUpdate update;
  update.gradient = view(std::span(gradient));
  update.master = update.parameter = view(std::span(parameter));
  update.slots[0] = view(std::span(momentum));
  update.options = standard_options(rule);
  update.scalars = &scalars;
  rule.cpu_range(update, 0, 1);
  return parameter[0] == 0.75F ? 0 : 1;
}

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/golden/golden_case.h"
#include "tests/golden/golden_run.h"

// The distances that results may have from the golden ones.
//
// The bounds. Both implementations compute in fp32, in different orders, so results differ by
// roundings. How far a rounding moves a result is a property of the model: a softmax of large
// scores moves far. So this is measured, with transformers alone. make_cases.py computes every
// result eight more times, with every weight and gradient moved at random by at most one unit in
// the last place, and notes the largest distance. That is two roundings of every product, one for
// each of the implementations. A sum of n products has n more roundings, which add up to the root
// of n times one rounding (Higham and Mary, A new approach to probabilistic rounding error
// analysis, 2019). The longest sums here have 64 terms: the rows of a step, in a weight's gradient,
// or a width. So a bound is 8 such distances. If a parameter's gradient is nearly zero, another
// rounding of it makes a training move the parameter by another part of the learning rate; the
// measured distances include that.
//
// To this bound 4 roundings of the result are added, as the measured distance of a number can be
// zero by chance.
namespace terrace {

inline constexpr double kSpreads = 8;
inline constexpr double kRoundings = 4 * 0x1p-24;

inline double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// Collects sentences about results that are too far from the golden ones.
class Differences {
 public:
  void add_number(const std::string& what, double value, double wanted, double spread) {
    const double bound = kSpreads * spread + kRoundings * std::abs(wanted);
    // Is also true if the value is not a number.
    if (!(std::abs(value - wanted) <= bound)) tell(what, std::abs(value - wanted), bound);
  }

  void add_tensor(const std::string& what, const std::vector<float>& values,
                  const std::vector<float>& wanted, double spread) {
    if (values.size() != wanted.size()) {
      list_.push_back(
          fmt::format("{} has {} elements, not {}", what, values.size(), wanted.size()));
      return;
    }
    std::vector<float> apart(values.size());
    std::transform(values.begin(), values.end(), wanted.begin(), apart.begin(), std::minus<>());
    const double bound = kSpreads * spread + kRoundings * norm(wanted);
    if (!(norm(apart) <= bound)) tell(what, norm(apart), bound);
  }

  void add(const std::string& sentence) { list_.push_back(sentence); }
  const std::vector<std::string>& list() const { return list_; }

 private:
  void tell(const std::string& what, double apart, double bound) {
    list_.push_back(
        fmt::format("{} is {:.3g} from the golden one; {:.3g} is the bound", what, apart, bound));
  }

  std::vector<std::string> list_;
};

// The golden file decides which tensors there must be, so none can be forgotten.
inline void compare_tensors(const std::string& kind, const NamedTensors& tensors,
                            const GoldenCase& golden, Differences& differences) {
  const bool gradients = kind == "gradient";
  for (const auto& [name, spread] : gradients ? golden.spread.gradients : golden.spread.after) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      differences.add(fmt::format("there is no {} of {}", kind, name));
    } else {
      differences.add_tensor(fmt::format("{} of {}", kind, name), found->second,
                             gradients ? golden.gradient(name) : golden.after(name), spread);
    }
  }
  if (gradients && tensors.size() != golden.spread.gradients.size()) {
    differences.add(fmt::format("{} tensors have gradients, not {}", tensors.size(),
                                golden.spread.gradients.size()));
  }
}

inline Differences compare_training(const GoldenCase& golden, const GoldenMesh& mesh) {
  const GoldenRun run = run_golden(golden, mesh);
  Differences differences;
  for (std::size_t i = 0; i < golden.losses.size(); ++i) {
    differences.add_number(fmt::format("loss of step {}", i + 1), run.losses.at(i),
                           golden.losses[i], golden.spread.losses[i]);
    differences.add_number(fmt::format("gradient norm of step {}", i + 1), run.gradient_norms.at(i),
                           golden.gradient_norms[i], golden.spread.gradient_norms[i]);
  }
  for (std::size_t i = 0; i < golden.balance_losses.size(); ++i) {
    differences.add_number(fmt::format("balance loss of step {}", i + 1), run.balance_losses.at(i),
                           golden.balance_losses[i], golden.spread.balance_losses.at(i));
  }
  compare_tensors("gradient", run.gradients, golden, differences);
  compare_tensors("value after the training", run.after, golden, differences);
  return differences;
}

}  // namespace terrace

#pragma once

#include <cstdint>
#include <string>

namespace terrace {

// What a run remembers of its evaluations, by the loss of their first validation set, from the
// first evaluation that it remembers.
struct EvaluationHistory {
  std::uint64_t set_hash = 0;  // of what was evaluated: losses of another set are not compared
  std::int64_t last_step = 0;  // of the last evaluation; 0: there was none
  std::int64_t lowest_step = 0;
  double lowest_loss = 0;           // after that step
  std::int64_t without_better = 0;  // evaluations after it

  // Adds an evaluation after a step, later than those before. Returns whether its loss is lower
  // than all of them.
  bool add(std::int64_t step, double loss);

  friend bool operator==(const EvaluationHistory&, const EvaluationHistory&) = default;
};

// As JSON.
std::string to_json(const EvaluationHistory& history);
// Throws std::exception for what to_json() does not make.
EvaluationHistory parse_evaluation_history(const std::string& json);

}  // namespace terrace

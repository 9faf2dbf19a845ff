#pragma once

#include <cstdint>
#include <string>

namespace terrace {

// A run's history of its evaluations, compared by the loss of their first validation set. It begins
// with the first evaluation that the run remembers.
struct EvaluationHistory {
  std::uint64_t set_hash = 0;  // of the evaluated set: losses of another set are not compared
  std::int64_t last_step = 0;  // of the last evaluation; 0: there was none
  std::int64_t lowest_step = 0;
  double lowest_loss = 0;           // after that step
  std::int64_t without_better = 0;  // evaluations after it

  // Adds an evaluation after a step that is later than all before. Returns whether its loss is
  // lower than all earlier ones.
  bool add(std::int64_t step, double loss);

  friend bool operator==(const EvaluationHistory&, const EvaluationHistory&) = default;
};

// Returns the history as JSON.
std::string to_json(const EvaluationHistory& history);
// Parses that JSON. Throws std::exception for text that to_json() does not make.
EvaluationHistory parse_evaluation_history(const std::string& json);

}  // namespace terrace

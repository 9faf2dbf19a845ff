#include "runtime/checkpoint/evaluation_history.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/checkpoint/json_number.h"
#include "runtime/checkpoint/listed_file.h"

namespace terrace {

bool EvaluationHistory::add(std::int64_t step, double loss) {
  const bool is_better = lowest_step == 0 || loss < lowest_loss;
  last_step = step;
  if (is_better) {
    lowest_step = step;
    lowest_loss = loss;
    without_better = 0;
  } else {
    ++without_better;
  }
  return is_better;
}

std::string to_json(const EvaluationHistory& history) {
  return nlohmann::json{{"set_xxh3", to_hex(history.set_hash)},
                        {"last_step", history.last_step},
                        {"lowest_step", history.lowest_step},
                        {"lowest_loss", history.lowest_loss},
                        {"without_better", history.without_better}}
      .dump();
}

EvaluationHistory parse_evaluation_history(const std::string& json) {
  const auto listed = nlohmann::json::parse(json);
  EvaluationHistory history{
      .set_hash = from_hex(listed.at("set_xxh3").get<std::string>()),
      .last_step = whole_number<std::int64_t>(listed.at("last_step")),
      .lowest_step = whole_number<std::int64_t>(listed.at("lowest_step")),
      .lowest_loss = listed.at("lowest_loss").get<double>(),
      .without_better = whole_number<std::int64_t>(listed.at("without_better"))};
  const bool is_in_order = 0 < history.lowest_step && history.lowest_step <= history.last_step &&
                           history.without_better >= 0 && std::isfinite(history.lowest_loss);
  if (!is_in_order)
    throw std::invalid_argument(fmt::format("not a history of evaluations: {}", json));
  return history;
}

}  // namespace terrace

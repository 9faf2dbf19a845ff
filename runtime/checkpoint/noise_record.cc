#include "runtime/checkpoint/noise_record.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/checkpoint/json_number.h"

namespace terrace {
namespace {

bool is_valid(const NoiseRecord& record) {
  const GradientNoise& sums = record.noise.sums;
  bool is_in_order =
      std::isfinite(sums.squared_norm) && std::isfinite(sums.variance) && record.noise.steps >= 0;
  std::int64_t last = 0;
  for (const auto& [micro_batches, first_step] : record.phases) {
    const bool is_first = last == 0;
    is_in_order = is_in_order && micro_batches >= 1 && first_step > last;
    is_in_order = is_in_order && (!is_first || first_step == 1);
    last = first_step;
  }
  return is_in_order;
}

}  // namespace

std::string to_json(const NoiseRecord& record) {
  nlohmann::json phases = nlohmann::json::array();
  for (const auto& [micro_batches, first_step] : record.phases) {
    phases.push_back({micro_batches, first_step});
  }
  return nlohmann::json{{"squared_norm", record.noise.sums.squared_norm},
                        {"variance", record.noise.sums.variance},
                        {"steps", record.noise.steps},
                        {"micro_batches_from_step", phases}}
      .dump();
}

NoiseRecord parse_noise_record(const std::string& json) {
  const auto listed = nlohmann::json::parse(json);
  NoiseRecord record{.noise = {.sums = {.squared_norm = listed.at("squared_norm").get<double>(),
                                        .variance = listed.at("variance").get<double>()},
                               .steps = whole_number<std::int64_t>(listed.at("steps"))},
                     .phases = {}};
  for (const auto& phase : listed.at("micro_batches_from_step")) {
    record.phases.push_back(
        {whole_number<std::int64_t>(phase.at(0)), whole_number<std::int64_t>(phase.at(1))});
  }
  if (!is_valid(record)) {
    throw std::invalid_argument(fmt::format("not a record of the gradient noise: {}", json));
  }
  return record;
}

}  // namespace terrace

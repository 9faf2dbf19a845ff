#include "runtime/train/first_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace terrace {
namespace {

// A prediction within this factor is as good as it can be expected to be, and is not mentioned.
constexpr double kUsualFactor = 3;

bool is_far_off(double ratio) { return ratio > kUsualFactor || ratio < 1 / kUsualFactor; }

}  // namespace

void FirstSteps::add(double step_s, std::size_t process_peak_bytes) {
  if (is_full()) return;
  step_s_.push_back(step_s);
  process_peak_bytes_ = std::max(process_peak_bytes_, process_peak_bytes);
}

std::optional<MeasuredStep> FirstSteps::measured() const {
  if (step_s_.empty()) return std::nullopt;
  std::vector<double> sorted(step_s_.begin() + (step_s_.size() > 1 ? 1 : 0), step_s_.end());
  std::ranges::sort(sorted);
  const std::size_t middle = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return MeasuredStep{.steps = std::ssize(sorted),
                      .median_step_s = median,
                      .process_peak_bytes = process_peak_bytes_};
}

std::string describe_measured(const PlannedStep& planned, const MeasuredStep& measured) {
  std::string text = fmt::format("measured: {:.3g} s a step, the median of {}",
                                 measured.median_step_s, measured.steps);
  if (planned.step_s.has_value() && is_far_off(measured.median_step_s / *planned.step_s)) {
    text += fmt::format("; {:.3g} s were predicted, so it takes {:.2f} times as long",
                        *planned.step_s, measured.median_step_s / *planned.step_s);
  }
  text += fmt::format(
      "\n"
      "process memory: at most {} so far, {} planned",
      format_size(measured.process_peak_bytes), format_size(planned.process_bytes));
  if (measured.device_bytes.has_value()) {
    text += fmt::format("; GPU memory: {} used, {} of it planned for the step",
                        format_size(*measured.device_bytes), format_size(planned.device_bytes));
  }
  return text;
}

std::string to_json(const PlannedStep& planned, const MeasuredStep& measured) {
  nlohmann::ordered_json json = {{"steps", measured.steps},
                                 {"step_s", measured.median_step_s},
                                 {"process_peak_bytes", measured.process_peak_bytes},
                                 {"planned_process_bytes", planned.process_bytes},
                                 {"planned_host_bytes", planned.host_bytes},
                                 {"planned_device_bytes", planned.device_bytes}};
  if (planned.step_s.has_value()) json["predicted_step_s"] = *planned.step_s;
  if (measured.device_bytes.has_value()) json["device_bytes"] = *measured.device_bytes;
  return json.dump();
}

}  // namespace terrace

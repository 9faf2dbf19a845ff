#include "bench/step_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/usage_clock.h"
#include "runtime/step/covered_time.h"

namespace terrace {
namespace {

// Returns the seconds during which at least one of the ops was at work.
double seconds_between(std::vector<OpTime>& times, std::int64_t from_ns, std::int64_t until_ns) {
  std::ranges::sort(times, {}, &OpTime::start_ns);
  CoveredTime covered(from_ns);
  for (const OpTime& time : times) {
    covered.add({.start_ns = time.start_ns, .end_ns = std::min(time.end_ns, until_ns)});
  }
  return covered.seconds();
}

}  // namespace

std::vector<std::int32_t> made_up_tokens(std::int64_t rows, std::int32_t micro_batches) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < 2 * rows * micro_batches; ++i) {
    tokens.push_back(static_cast<std::int32_t>((i % rows * 7 + i / rows) % 251));
  }
  return tokens;
}

StepRunner::StepRunner(const ModelRuntimeOptions& options, Log& log)
    : options_(options),
      plan_(plan_model(options_)),
      engine_(options_, plan_, log),
      tokens_(made_up_tokens(options.batch.rows(), options.placement.micro_batches)) {
  engine_.fill_state(RandomState(1234));
}

double StepRunner::step_seconds(int steps) {
  std::vector<std::int64_t> starts;
  const UsageClock clock;
  const double timed = steps - 2;
  for (std::vector<OpTime>& times : lane_times_) times.clear();
  begin();
  for (int i = 0; i < steps; ++i) {
    if (i + 1 < steps) begin();
    const StepOutcome outcome = engine_.finish_step();
    starts.push_back(outcome.report->first_compute_ns);
    keep_times(*outcome.report);
    if (i + 2 == steps) last_ = *outcome.report;
  }
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    busy_s_[lane] = seconds_between(lane_times_[lane], starts[1], starts.back()) / timed;
  }
  compute_s_.add(busy_s_[static_cast<std::size_t>(Lane::kCompute)]);
  engine_.drain();
  processor_s_.add(clock.cpu_seconds() / steps);
  return static_cast<double>(starts.back() - starts[1]) * 1e-9 / timed;
}

void StepRunner::keep_times(const RunReport& report) {
  for (std::size_t i = 0; i < report.times.size(); ++i) {
    const OpTime& time = report.times[i];
    if (time.end_ns != 0) {
      lane_times_[static_cast<std::size_t>(program().ops[i].lane)].push_back(time);
    }
  }
}

void StepRunner::forget() {
  processor_s_ = {};
  compute_s_ = {};
}

void StepRunner::begin() {
  ++step_;
  const auto targets = static_cast<std::int64_t>(tokens_.size() / 2) * options_.ranks.shape.data;
  engine_.begin_step({step_, tokens_, targets, 1e-5});
}

void add_busy(std::vector<BenchResult::Detail>& details, std::string_view prefix,
              const std::array<double, kLaneCount>& busy_s, double step_s) {
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    if (busy_s[lane] <= 0) continue;
    details.push_back(
        number_detail(fmt::format("{}_{}", prefix, snake_name(name_of(static_cast<Lane>(lane)))),
                      "of a step", busy_s[lane] / step_s));
  }
}

}  // namespace terrace

#include "runtime/train/forecast_growth.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace terrace {
namespace {

// The line through two points, followed to the micro-batches of the whole step.
class Line {
 public:
  explicit Line(const StepGrowth& growth)
      : times_(static_cast<double>(growth.micro_batches - growth.steps[1]) /
               (growth.steps[1] - growth.steps[0])) {}

  double operator()(double shorter, double longer) const {
    return longer + times_ * (longer - shorter);
  }

  std::size_t operator()(std::size_t shorter, std::size_t longer) const {
    const double bytes = (*this)(static_cast<double>(shorter), static_cast<double>(longer));
    return static_cast<std::size_t>(std::max(0.0, std::ceil(bytes)));
  }

 private:
  double times_;
};

Ledger grow(const Ledger& shorter, const Ledger& longer, const Line& line) {
  Ledger grown = longer;
  for (const Tier tier : kTiers) {
    TierLedger& of_tier = grown[tier];
    of_tier.peak_bytes = line(shorter[tier].peak_bytes, longer[tier].peak_bytes);
    of_tier.live_peak_bytes = line(shorter[tier].live_peak_bytes, longer[tier].live_peak_bytes);
    for (std::size_t a = 0; a < kAccountCount; ++a) {
      of_tier.charged_bytes[a] =
          line(shorter[tier].charged_bytes[a], longer[tier].charged_bytes[a]);
    }
  }
  return grown;
}

bool moves_between_tiers(const PlannedStage& stage) {
  return std::ranges::any_of(std::array{Lane::kUpload, Lane::kDownload, Lane::kRead, Lane::kWrite},
                             [&](Lane lane) { return lane_bytes(stage.program, lane) > 0; });
}

bool recompute_alike(const StepFlops& a, const StepFlops& b) {
  constexpr double kRounding = 1e-9;
  return std::abs(a.recomputed * b.necessary - b.recomputed * a.necessary) <=
         kRounding * a.necessary * b.necessary;
}

// Seconds of the run's step in which the stage's lane is busy.
double busy_s(const RunForecast& forecast, std::size_t stage, std::size_t lane) {
  return forecast.stages.at(stage).busy_share.at(lane) * forecast.step_s;
}

}  // namespace

std::optional<ShorterSteps> shorter_steps(const PipelineShape& shape) {
  constexpr int kWorthIt = 8;  // times as many micro-batches as stages
  if (shape.schedule == PipelineSchedule::kGpipe || shape.stages == 1) return std::nullopt;
  if (shape.micro_batches <= kWorthIt * shape.stages) return std::nullopt;
  return ShorterSteps{2 * shape.stages, 3 * shape.stages};
}

bool can_grow(const PlannedStages& shorter, const PlannedStages& longer, const StepGrowth& growth) {
  const Line line(growth);
  for (std::size_t s = 0; s < longer.size(); ++s) {
    if (moves_between_tiers(shorter[s]) || moves_between_tiers(longer[s])) return false;
    if (!recompute_alike(shorter[s].flops, longer[s].flops)) return false;
    if (!fits(grow(shorter[s].ledger, longer[s].ledger, line))) return false;
  }
  return true;
}

RunForecast grow_forecast(const RunForecast& shorter, const RunForecast& longer,
                          const StepGrowth& growth) {
  TERRACE_CHECK_EQ(shorter.stages.size(), longer.stages.size());
  const Line line(growth);
  RunForecast grown = longer;
  grown.model_flops = line(shorter.model_flops, longer.model_flops);
  grown.step_s = line(shorter.step_s, longer.step_s);
  for (std::size_t s = 0; s < grown.stages.size(); ++s) {
    const StageForecast& a = shorter.stages[s];
    const StageForecast& b = longer.stages[s];
    StageForecast& stage = grown.stages[s];
    stage.ledger = grow(a.ledger, b.ledger, line);
    stage.flops = {.necessary = line(a.flops.necessary, b.flops.necessary),
                   .recomputed = line(a.flops.recomputed, b.flops.recomputed),
                   .masked_halves = line(a.flops.masked_halves, b.flops.masked_halves)};
    for (std::size_t l = 0; l < kLaneCount; ++l) {
      stage.bytes[l] = line(a.bytes[l], b.bytes[l]);
      stage.busy_share[l] = line(busy_s(shorter, s, l), busy_s(longer, s, l));  // seconds so far
    }
    stage.step_s = std::max(line(a.step_s, b.step_s), std::ranges::max(stage.busy_share));
    grown.step_s = std::max(grown.step_s, stage.step_s);
  }
  for (StageForecast& stage : grown.stages) {
    for (double& share : stage.busy_share) share /= grown.step_s;
    stage.bottleneck = busiest_lane(stage.busy_share);
  }
  finish_forecast(grown);
  return grown;
}

}  // namespace terrace

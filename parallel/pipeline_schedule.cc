#include "parallel/pipeline_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

// Returns the n-th forward or backward of a stage. With virtual stages, `stages` micro-batches go
// through one piece of the stage, then through the next; in the backward the pieces come in the
// opposite order.
PipelineSlot nth(const PipelineShape& shape, PipelinePass pass, int n) {
  if (shape.virtual_stages == 1) return {pass, n, 0};
  const int round = n / (shape.stages * shape.virtual_stages);
  const int in_round = n % (shape.stages * shape.virtual_stages);
  const int piece = in_round / shape.stages;
  return {
      .pass = pass,
      .micro_batch = round * shape.stages + in_round % shape.stages,
      .virtual_stage = pass == PipelinePass::kForward ? piece : shape.virtual_stages - 1 - piece};
}

// Returns the number of forwards before the first backward, not counting the forward that is paired
// with it.
int warm_up(const PipelineShape& shape, int stage, int total) {
  const int behind = shape.stages - stage - 1;
  switch (shape.schedule) {
    case PipelineSchedule::kGpipe:
      return total;
    case PipelineSchedule::k1F1B:
      return std::min(behind, total);
    case PipelineSchedule::kInterleaved:
      // With one piece this is 1F1B. With more, a piece's last micro-batch of a round must have
      // come back through the later pieces.
      if (shape.virtual_stages == 1) return std::min(behind, total);
      return std::min(2 * behind + (shape.virtual_stages - 1) * shape.stages, total);
  }
  return total;
}

}  // namespace

void check_pipeline_shape(const PipelineShape& shape) {
  TERRACE_CHECK_LT(0, shape.stages);
  TERRACE_CHECK_LT(0, shape.micro_batches);
  TERRACE_CHECK_LT(0, shape.virtual_stages);
  const bool interleaved = shape.schedule == PipelineSchedule::kInterleaved;
  if (!interleaved && shape.virtual_stages != 1) {
    throw ConfigError(fmt::format("{} virtual stages were requested, but only the interleaved "
                                  "schedule can have more than one",
                                  shape.virtual_stages),
                      "use the interleaved schedule");
  }
  if (interleaved && shape.micro_batches % shape.stages != 0) {
    throw ConfigError(
        fmt::format("the interleaved schedule needs a number of micro-batches that is a multiple "
                    "of the {} stages, not {}",
                    shape.stages, shape.micro_batches),
        "change the number of micro-batches (gradient accumulation steps), or use the schedule "
        "1f1b");
  }
}

std::vector<PipelineSlot> pipeline_slots(const PipelineShape& shape, int stage) {
  check_pipeline_shape(shape);
  TERRACE_CHECK_LE(0, stage);
  TERRACE_CHECK_LT(stage, shape.stages);
  const int total = shape.micro_batches * shape.virtual_stages;
  const int before = warm_up(shape, stage, total);
  std::vector<PipelineSlot> slots;
  for (int n = 0; n < before; ++n) slots.push_back(nth(shape, PipelinePass::kForward, n));
  for (int n = before; n < total; ++n) {
    slots.push_back(nth(shape, PipelinePass::kForward, n));
    slots.push_back(nth(shape, PipelinePass::kBackward, n - before));
  }
  for (int n = total - before; n < total; ++n) {
    slots.push_back(nth(shape, PipelinePass::kBackward, n));
  }
  return slots;
}

std::vector<int> balance_stages(std::span<const double> unit_costs, int pieces,
                                std::span<const double> stage_speeds) {
  TERRACE_CHECK_LT(0, pieces);
  const auto units = unit_costs.size();
  const auto runs = static_cast<std::size_t>(pieces);
  if (units < runs) {
    throw ConfigError(
        fmt::format("the pipeline has {} pieces, but the model has only {} units to divide among "
                    "them",
                    pieces, units),
        "use fewer pipeline stages, or fewer virtual stages");
  }
  const auto speed_of = [&](std::size_t piece) {
    return stage_speeds.empty() ? 1.0 : stage_speeds[piece % stage_speeds.size()];
  };
  // best[k][n] is the largest run when the first n units are cut into k + 1 runs; cut[k][n] is
  // where the last of these runs begins.
  const double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(runs, std::vector<double>(units + 1, none));
  std::vector<std::vector<std::size_t>> cut(runs, std::vector<std::size_t>(units + 1, 0));
  double sum = 0;
  for (std::size_t n = 1; n <= units; ++n) {
    sum += unit_costs[n - 1];
    best[0][n] = sum / speed_of(0);
  }
  for (std::size_t k = 1; k < runs; ++k) {
    for (std::size_t n = k + 1; n <= units; ++n) {
      double last = 0;
      for (std::size_t begin = n - 1; begin >= k; --begin) {
        last += unit_costs[begin];
        const double largest = std::max(best[k - 1][begin], last / speed_of(k));
        if (largest < best[k][n]) {
          best[k][n] = largest;
          cut[k][n] = begin;
        }
      }
    }
  }
  std::vector<int> firsts(runs + 1, 0);
  firsts[runs] = static_cast<int>(units);
  for (std::size_t k = runs - 1; k > 0; --k) {
    firsts[k] = static_cast<int>(cut[k][static_cast<std::size_t>(firsts[k + 1])]);
  }
  return firsts;
}

}  // namespace terrace

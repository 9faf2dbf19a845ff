#include "runtime/train/islands.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

bool has_automatic_islands(const StepOptions& step) {
  return step.zero_partition != ZeroPartition::kAll && !step.island_ranks.has_value();
}

// Neighbouring ranks share a host. Those of one tensor-parallel group have one data-parallel
// position.
int island_ranks_for(const MeshShape& shape, const StepOptions& step, int ranks_on_host) {
  if (step.island_ranks.has_value()) return *step.island_ranks;
  return std::gcd(std::max(1, ranks_on_host / shape.tensor), shape.data);
}

}  // namespace

MeshShape mesh_in_islands(const MeshShape& shape, const TrainOptions& options, int ranks_on_host) {
  const StepOptions& step = options.step;
  if (step.zero_partition == ZeroPartition::kAll) return shape;
  const std::string flag = fmt::format("--zero-partition {}", name_of(step.zero_partition));
  const int stage = zero_stage_for(options, shape);
  if (stage != 3) {
    throw ConfigError(
        fmt::format("{} with ZeRO stage {}: only stage 3 divides parameters", flag, stage),
        "give --zero-stage 3, or leave it out");
  }
  if (shape.data == 1) {
    throw ConfigError(flag + " with one data-parallel rank: there is nothing to divide",
                      "leave it out, or train with more ranks");
  }
  if (step.zero_partition == ZeroPartition::kHsdp &&
      step.gradient_reduction == ReductionChoice::kMicroBatch) {
    throw ConfigError(flag +
                          " with --gradient-reduction micro-batch: each island would need all "
                          "sums of each micro-batch",
                      "give only one of them");
  }
  const int ranks = island_ranks_for(shape, step, ranks_on_host);
  if (ranks == 1) {
    throw ConfigError(flag +
                          " with islands of one data-parallel rank: each rank would have whole "
                          "parameters, as with ZeRO stage 2",
                      "give --zero-stage 2 instead, or --island-ranks 2 or more");
  }
  return with_islands(shape, ranks);
}

int ranks_of_each_host(Communicator* world, const TrainOptions& options, int on_this_host) {
  if (world == nullptr || !has_automatic_islands(options.step)) return on_this_host;
  const std::vector<std::int32_t> counts = of_all_ranks(*world, std::int32_t{on_this_host});
  const auto [least, most] = std::ranges::minmax(counts);
  if (least != most) {
    throw ConfigError(fmt::format("--zero-partition {} makes an island of each host, but some "
                                  "hosts have {} ranks and others {}",
                                  name_of(options.step.zero_partition), least, most),
                      "start equally many ranks on every host, or give --island-ranks");
  }
  return on_this_host;
}

}  // namespace terrace

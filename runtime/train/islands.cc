#include "runtime/train/islands.h"

#include <fmt/format.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/train/rank_group.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

bool has_automatic_islands(const StepOptions& step) {
  return step.zero_partition != ZeroPartition::kAll && !step.island_ranks.has_value();
}

std::string flag_of(const StepOptions& step) {
  return fmt::format("--zero-partition {}", name_of(step.zero_partition));
}

// Hosts have consecutive ranks. Those of one tensor-parallel group have one data-parallel position.
// Islands of a common divisor lie within hosts, and data-parallel ranks divide into them.
int island_ranks_for(const MeshShape& shape, const StepOptions& step, int ranks_on_host) {
  if (step.island_ranks.has_value()) return *step.island_ranks;
  if (ranks_on_host % shape.tensor != 0) {
    throw ConfigError(
        fmt::format("{} makes islands of the ranks of a host, but the {} ranks of a host are not "
                    "whole groups of {} tensor-parallel ranks",
                    flag_of(step), ranks_on_host, shape.tensor),
        "give --island-ranks");
  }
  return std::gcd(ranks_on_host / shape.tensor, shape.data);
}

void check_use(const MeshShape& shape, const TrainOptions& options) {
  const std::string flag = flag_of(options.step);
  const int stage = zero_stage_for(options, shape);
  if (stage != 3) {
    throw ConfigError(
        fmt::format("{} with ZeRO stage {}: only stage 3 divides parameters", flag, stage),
        "give --zero-stage 3, or leave --zero-partition out");
  }
  if (shape.data == 1) {
    throw ConfigError(flag + " with one data-parallel rank: there is nothing to divide",
                      "leave --zero-partition out, or train with more ranks");
  }
  if (options.step.zero_partition == ZeroPartition::kHsdp &&
      options.step.gradient_reduction == ReductionChoice::kMicroBatch) {
    throw ConfigError(flag +
                          " with --gradient-reduction micro-batch: the sums of every micro-batch "
                          "would have to cross between islands",
                      "give only one of them, or --zero-partition hpz");
  }
}

}  // namespace

MeshShape mesh_in_islands(const MeshShape& shape, const TrainOptions& options, int ranks_on_host) {
  const StepOptions& step = options.step;
  if (step.zero_partition == ZeroPartition::kAll) return shape;
  check_use(shape, options);
  const int ranks = island_ranks_for(shape, step, ranks_on_host);
  if (ranks == 1) {
    throw ConfigError(flag_of(step) +
                          " with islands of one data-parallel rank: each rank would have whole "
                          "parameters, as with ZeRO stage 2",
                      "give --zero-stage 2 instead, or --island-ranks 2 or more");
  }
  return with_islands(shape, ranks);
}

int ranks_of_each_host(const LaunchedRanks& ranks, const TrainOptions& options) {
  const int count = ranks.on_host.count;
  const bool is_dry = ranks.stands_for > 1;  // then all ranks are threads of this process
  if (ranks.world == nullptr || is_dry || !has_automatic_islands(options.step)) return count;
  const std::vector<RanksOnHost> hosts = of_all_ranks(*ranks.world, ranks.on_host);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank].count != hosts.front().count) {
      throw ConfigError(
          fmt::format("{} makes islands of the ranks of a host, but rank 0's host has {} ranks and "
                      "rank {}'s has {}",
                      flag_of(options.step), hosts.front().count, rank, hosts[rank].count),
          "start equally many ranks on every host, or give --island-ranks");
    }
    if (hosts[rank].index != static_cast<int>(rank) % hosts.front().count) {
      throw ConfigError(
          fmt::format("{} makes islands of the ranks of a host, but the ranks of a host do not "
                      "have consecutive numbers: rank {} is number {} on its host of {}",
                      flag_of(options.step), rank, hosts[rank].index, hosts.front().count),
          "fill one host after the other (mpirun --map-by slot), or give --island-ranks");
    }
  }
  return count;
}

}  // namespace terrace

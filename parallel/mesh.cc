#include "parallel/mesh.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace terrace {

MeshShape mesh_of(int ranks, int tensor, int pipeline) {
  TERRACE_CHECK_LT(0, ranks);
  TERRACE_CHECK_LT(0, tensor);
  TERRACE_CHECK_LT(0, pipeline);
  if (ranks % tensor != 0 || ranks / tensor % pipeline != 0) {
    throw ConfigError(
        fmt::format("{} ranks cannot be divided into tensor-parallel groups of {} and {} pipeline "
                    "stages",
                    ranks, tensor, pipeline),
        "start a number of ranks that is a multiple of tensor-parallel ranks x pipeline stages");
  }
  return {.data = ranks / tensor / pipeline, .tensor = tensor, .pipeline = pipeline};
}

MeshShape with_islands(const MeshShape& shape, int island_ranks) {
  TERRACE_CHECK_LT(0, island_ranks);
  if (shape.data % island_ranks != 0) {
    throw ConfigError(fmt::format("{} data-parallel ranks cannot be divided into islands of {}",
                                  shape.data, island_ranks),
                      fmt::format("give --island-ranks a number that divides {}", shape.data));
  }
  MeshShape divided = shape;
  divided.islands = shape.data / island_ranks;
  return divided;
}

MeshPosition position_of(const MeshShape& shape, int rank) {
  TERRACE_CHECK_LE(0, rank);
  TERRACE_CHECK_LT(rank, shape.ranks());
  return {.data = rank / shape.tensor % shape.data,
          .tensor = rank % shape.tensor,
          .pipeline = rank / shape.tensor / shape.data};
}

int rank_of(const MeshShape& shape, const MeshPosition& position) {
  TERRACE_CHECK_LT(position.data, shape.data);
  TERRACE_CHECK_LT(position.tensor, shape.tensor);
  TERRACE_CHECK_LT(position.pipeline, shape.pipeline);
  return (position.pipeline * shape.data + position.data) * shape.tensor + position.tensor;
}

MeshGroups make_mesh_groups(Communicator& world, const MeshShape& shape) {
  TERRACE_CHECK_EQ(world.size(), shape.ranks());
  MeshGroups groups;
  const MeshPosition at = position_of(shape, world.rank());
  groups.position = at;
  groups.data = world.split(at.pipeline * shape.tensor + at.tensor, at.data,
                            fmt::format("dp(tp={},pp={})", at.tensor, at.pipeline));
  if (shape.islands > 1) {
    const int island = at.data / shape.island_ranks();
    const int place = at.data % shape.island_ranks();
    groups.island =
        groups.data->split(island, place, fmt::format("{} island {}", groups.data->name(), island));
    groups.inter_island = groups.data->split(
        place, island, fmt::format("{} across islands {}", groups.data->name(), place));
  }
  groups.tensor = world.split(at.pipeline * shape.data + at.data, at.tensor,
                              fmt::format("tp(dp={},pp={})", at.data, at.pipeline));
  groups.pipeline = world.split(at.data * shape.tensor + at.tensor, at.pipeline,
                                fmt::format("pp(dp={},tp={})", at.data, at.tensor));
  return groups;
}

}  // namespace terrace

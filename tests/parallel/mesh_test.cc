#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "parallel/thread_communicator.h"

namespace terrace {
namespace {

constexpr MeshShape kShape = {.data = 2, .tensor = 3, .pipeline = 2};

TEST(MeshTest, PositionsAndRanksAreInverse) {
  for (int rank = 0; rank < kShape.ranks(); ++rank) {
    EXPECT_EQ(rank_of(kShape, position_of(kShape, rank)), rank);
  }
}

TEST(MeshTest, TensorIsInnermostThenDataThenPipeline) {
  EXPECT_EQ(position_of(kShape, 0), (MeshPosition{.data = 0, .tensor = 0, .pipeline = 0}));
  EXPECT_EQ(position_of(kShape, 1), (MeshPosition{.data = 0, .tensor = 1, .pipeline = 0}));
  EXPECT_EQ(position_of(kShape, 3), (MeshPosition{.data = 1, .tensor = 0, .pipeline = 0}));
  EXPECT_EQ(position_of(kShape, 6), (MeshPosition{.data = 0, .tensor = 0, .pipeline = 1}));
}

TEST(MeshTest, DataParallelismIsWhatIsLeft) {
  EXPECT_EQ(mesh_of(12, 3, 2), kShape);
  EXPECT_EQ(mesh_of(1, 1, 1).ranks(), 1);
  EXPECT_THROW(mesh_of(12, 5, 1), ConfigError);
  EXPECT_THROW(mesh_of(12, 3, 8), ConfigError);
  EXPECT_THROW(mesh_of(2, 1, 4), ConfigError);
}

// Returns the world ranks of a group, in the order of the group.
std::vector<std::int32_t> members_of(Communicator& group, int world_rank) {
  std::vector<std::int32_t> members(static_cast<std::size_t>(group.size()));
  std::vector<std::int32_t> own = {world_rank};
  group.all_gather(view(std::span(members)), view(std::span(own)), {});
  return members;
}

TEST(MeshTest, GroupsDifferInOnePosition) {
  auto world = make_thread_communicators(kShape.ranks(), "world");
  std::vector<std::jthread> threads;
  for (auto& end : world) {
    threads.emplace_back([&end] {
      const MeshGroups groups = make_mesh_groups(*end, kShape);
      MeshPosition at = groups.position;
      EXPECT_EQ(at, position_of(kShape, end->rank()));
      EXPECT_EQ(groups.data->rank(), at.data);
      EXPECT_EQ(groups.tensor->rank(), at.tensor);
      EXPECT_EQ(groups.pipeline->rank(), at.pipeline);
      const std::vector<std::int32_t> data = members_of(*groups.data, end->rank());
      ASSERT_EQ(data.size(), 2U);
      for (at.data = 0; at.data < 2; ++at.data) {
        EXPECT_EQ(data[static_cast<std::size_t>(at.data)], rank_of(kShape, at));
      }
      at = groups.position;
      const std::vector<std::int32_t> tensor = members_of(*groups.tensor, end->rank());
      ASSERT_EQ(tensor.size(), 3U);
      for (at.tensor = 0; at.tensor < 3; ++at.tensor) {
        EXPECT_EQ(tensor[static_cast<std::size_t>(at.tensor)], rank_of(kShape, at));
      }
      at = groups.position;
      const std::vector<std::int32_t> pipeline = members_of(*groups.pipeline, end->rank());
      ASSERT_EQ(pipeline.size(), 2U);
      for (at.pipeline = 0; at.pipeline < 2; ++at.pipeline) {
        EXPECT_EQ(pipeline[static_cast<std::size_t>(at.pipeline)], rank_of(kShape, at));
      }
      EXPECT_EQ(groups.data->name(), end->rank() == 7 ? "dp(tp=1,pp=1)" : groups.data->name());
    });
  }
}

TEST(MeshTest, IslandsAreNeighboursOnTheDataAxis) {
  MeshShape shape = {.data = 6, .tensor = 2};
  EXPECT_EQ(with_islands(shape, 6), shape);
  shape = with_islands(shape, 3);
  EXPECT_EQ(shape.islands, 2);
  EXPECT_THROW(with_islands(shape, 4), ConfigError);
  auto world = make_thread_communicators(shape.ranks(), "world");
  std::vector<std::jthread> threads;
  for (auto& end : world) {
    threads.emplace_back([&end, shape] {
      const MeshGroups groups = make_mesh_groups(*end, shape);
      const MeshPosition own = groups.position;
      const auto ranks_at = [&](std::initializer_list<int> places) {
        std::vector<std::int32_t> ranks;
        for (const int data : places) {
          ranks.push_back(rank_of(shape, {.data = data, .tensor = own.tensor}));
        }
        return ranks;
      };
      EXPECT_EQ(members_of(*groups.island, end->rank()),
                own.data < 3 ? ranks_at({0, 1, 2}) : ranks_at({3, 4, 5}));
      EXPECT_EQ(members_of(*groups.inter_island, end->rank()),
                ranks_at({own.data % 3, own.data % 3 + 3}));
    });
  }
}

}  // namespace
}  // namespace terrace

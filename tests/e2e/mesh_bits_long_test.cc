#include <gtest/gtest.h>

#include "tests/e2e/mesh_runs.h"

namespace terrace {
namespace {

constexpr int kShards = 8;
constexpr int kRunsOfShard = 250;

class MeshBitsLong : public testing::TestWithParam<int> {};

TEST_P(MeshBitsLong, RandomRunsHaveTheBitsOfThePlainRun) {
  // The seeds of a shard follow the seeds of the shard before it. The first ones are the short
  // test's.
  const MeshTally tally =
      expect_matrix_holds(1000 * static_cast<std::uint64_t>(GetParam()), kRunsOfShard);
  EXPECT_GT(tally.without_clipping * 10, kRunsOfShard * 3);
  EXPECT_GT(tally.corner_head_alone, kRunsOfShard / 20);
  EXPECT_GT(tally.on_another_mesh, 0);
}

INSTANTIATE_TEST_SUITE_P(Shards, MeshBitsLong, testing::Range(0, kShards));

}  // namespace
}  // namespace terrace

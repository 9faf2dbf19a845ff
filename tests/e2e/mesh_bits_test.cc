#include <gtest/gtest.h>

#include "tests/e2e/mesh_runs.h"

namespace terrace {
namespace {

TEST(MeshBits, RandomRunsHaveTheBitsOfThePlainRun) {
  const MeshTally tally = expect_matrix_holds(0, 40);
  // Here updates once crossed a step's border, and no other test noticed it.
  EXPECT_GT(tally.corner_head_alone, 0);
  EXPECT_GT(tally.resumed, 0);
}

}  // namespace
}  // namespace terrace

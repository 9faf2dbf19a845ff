#include <gtest/gtest.h>

#include "tests/sim/sim_seeds.h"

namespace terrace {
namespace {

TEST(SimulationLong, TenThousandSeeds) { expect_seeds_hold(1000, 10'000); }

}  // namespace
}  // namespace terrace

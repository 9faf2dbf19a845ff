#include <gtest/gtest.h>

#include "tests/e2e/killed_training.h"

namespace terrace {
namespace {

TEST(KilledTrainingLong, TwentyKills) { expect_kills_leave_no_trace(5, 20); }

}  // namespace
}  // namespace terrace

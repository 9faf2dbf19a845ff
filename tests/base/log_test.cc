#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

TEST(SilentLogTest, SaysNothing) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  SilentLog silent;
  Log& log = silent;
  log.info("information");
  log.warning("warning");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace terrace

#include "runtime/train/train_report.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(TrainReport, AResumeOnAnotherDeviceIsNamed) {
  CheckpointProgress progress;
  progress.step = 7;
  EXPECT_EQ(describe_resume(progress, "cuda"), "resumed after step 7") << "not known";
  progress.device = "cpu";
  EXPECT_EQ(describe_resume(progress, "cpu"), "resumed after step 7");
  const std::string text = describe_resume(progress, "cuda");
  EXPECT_NE(text.find("resumed after step 7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("computed with --device cpu, the next will be with --device cuda"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace terrace

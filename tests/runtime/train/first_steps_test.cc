#include "runtime/train/first_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(FirstSteps, TheVeryFirstIsLeftOutWhereThereIsAnother) {
  FirstSteps steps;
  EXPECT_FALSE(steps.measured().has_value());
  steps.add(10, 100);
  EXPECT_EQ(steps.measured()->median_step_s, 10);
  steps.add(2, 300);
  EXPECT_EQ(steps.measured()->median_step_s, 2);
  steps.add(4, 200);
  EXPECT_EQ(steps.measured()->median_step_s, 3);
  EXPECT_FALSE(steps.is_full());
  steps.add(1, 200);
  EXPECT_TRUE(steps.is_full());
  steps.add(50, 900);  // ignored: it is not one of the first steps
  EXPECT_EQ(steps.measured()->median_step_s, 2);
  EXPECT_EQ(steps.measured()->steps, 3);
  EXPECT_EQ(steps.measured()->process_peak_bytes, 300U);
}

TEST(FirstSteps, AreToldBesideWhatWasPlanned) {
  PlannedStep planned{.step_s = 2, .device_bytes = kMiB, .host_bytes = 64 * kMiB};
  planned.process_bytes = 100 * kMiB;
  MeasuredStep measured{.steps = 3, .median_step_s = 7, .process_peak_bytes = 120 * kMiB};
  EXPECT_EQ(describe_measured(planned, measured),
            "measured: 7 s a step, the median of 3; 2 s were predicted, so it takes 3.50 times as "
            "long\nprocess memory: at most 120 MiB so far, 100 MiB planned");
  measured.median_step_s = 0.5;
  EXPECT_THAT(describe_measured(planned, measured), HasSubstr("it takes 0.25 times as long"));
  measured.median_step_s = 3;  // about as predicted
  EXPECT_EQ(describe_measured(planned, measured),
            "measured: 3 s a step, the median of 3\n"
            "process memory: at most 120 MiB so far, 100 MiB planned");
  const auto json = nlohmann::json::parse(to_json(planned, measured));
  EXPECT_EQ(json.at("predicted_step_s"), 2);
  EXPECT_EQ(json.at("step_s"), 3);
  EXPECT_EQ(json.at("planned_host_bytes"), 64 * kMiB);
  EXPECT_EQ(json.at("process_peak_bytes"), 120 * kMiB);
  EXPECT_FALSE(json.contains("device_bytes"));
}

TEST(FirstSteps, OfAGpuItsMemoryIsToldAndNothingIsPredicted) {
  const PlannedStep planned{.device_bytes = 64 * kMiB};
  const MeasuredStep measured{
      .steps = 1, .median_step_s = 3, .process_peak_bytes = 1, .device_bytes = 80 * kMiB};
  const std::string text = describe_measured(planned, measured);
  EXPECT_THAT(text, testing::Not(HasSubstr("predicted")));
  EXPECT_THAT(text, HasSubstr("GPU memory: 80.0 MiB used, 64.0 MiB of it planned"));
  const auto json = nlohmann::json::parse(to_json(planned, measured));
  EXPECT_FALSE(json.contains("predicted_step_s"));
  EXPECT_EQ(json.at("device_bytes"), 80 * kMiB);
}

}  // namespace
}  // namespace terrace

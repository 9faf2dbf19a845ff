#include <gtest/gtest.h>

#include "tests/e2e/killed_training.h"

// Fifty kills in each of five ways to train.
namespace terrace {
namespace {

struct Way {
  const char* name;
  std::vector<std::string> options;
};

class KilledTrainingLong : public testing::TestWithParam<Way> {};

TEST_P(KilledTrainingLong, FiftyKills) {
  const Kills kills = expect_kills_leave_no_trace(5, 50, GetParam().options);
  EXPECT_EQ(kills.in_starts + kills.in_steps + kills.in_checkpoints, 50);
  // The kills are spread all over the run. Steps beside which a checkpoint is written count as
  // checkpoints.
  EXPECT_GT(kills.in_starts, 3);
  EXPECT_GT(kills.in_steps, 3);
  EXPECT_GT(kills.in_checkpoints, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, KilledTrainingLong,
    testing::Values(
        Way{"state_on_drive", {"--place-optimizer", "nvme"}},
        Way{"all_on_drive",
            {"--place-optimizer", "nvme", "--place-parameters", "nvme", "--place-gradients", "nvme",
             "--place-activations", "nvme"}},
        Way{"posix_device",
            {"--place-optimizer", "nvme", "--io-engine", "posix", "--device-memory", "16MiB"}},
        Way{"in_memory_keep_last",
            {"--keep-last", "1", "--micro-batch-order", "layer-major", "--recompute", "full"}},
        Way{"keep_best",
            {"--keep-best", "--keep-last", "1", "--eval-every", "7", "--eval-samples", "2",
             "--validation-fraction", "0.1"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace terrace

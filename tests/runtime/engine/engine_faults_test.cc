#include <gtest/gtest.h>

#include <cerrno>

#include "base/error.h"
#include "tests/runtime/engine/engine_fixture.h"
#include "tests/sanitized.h"

// Training on drives that fail now and then, on both I/O engines: either the numbers are right, or
// the run ends in an error that names the place.
namespace terrace {
namespace {

constexpr std::int64_t kSteps = 4;
constexpr std::uint64_t kSeeds = kSanitized ? 5 : 10;

ModelRuntimeOptions plain_options() {
  return tiny_options(tiny_model("llama", true, false), DType::kBF16);
}

class EngineOnFaultyDrive : public ::testing::TestWithParam<IoEngineKind> {
 protected:
  // Returns options with everything on NVMe and with these faults.
  ModelRuntimeOptions faulty_options(SystemFaults* faults) const {
    ModelRuntimeOptions options = plain_options();
    PlacementRequest& placement = options.placement;
    placement.homes.fill(Tier::kNvme);
    placement.has_nvme = true;
    options.nvme.directories.push_back({directory_.path(), std::nullopt});
    options.nvme.engine = GetParam();
    options.nvme.faults = faults;
    return options;
  }

  // Expects either an error that names file, offset and length, or no error and the right curve.
  // Returns whether the run came to its end.
  bool trains_right(const FaultPlan& plan, const Curve& expected) {
    SeededFaults faults(plan, 4096);
    try {
      const TrainedRun run = train_tiny(faulty_options(&faults), kSteps);
      EXPECT_TRUE(run.curve == expected) << "seed " << plan.seed;
      EXPECT_GT(run.traffic.of(Lane::kRead), 0);
      return true;
    } catch (const IoError& error) {
      EXPECT_NE(error.where().path.find("slots.bin"), std::string::npos) << error.what();
      EXPECT_GT(error.where().size, 0U);
    } catch (const CorruptData& error) {
      EXPECT_NE(std::string(error.what()).find("slots.bin at offset "), std::string::npos)
          << error.what();
    }
    return false;
  }

  bool engine_is_refused() const {
    try {
      SilentLog log;
      make_nvme_store(faulty_options(nullptr).nvme, log);
      return false;
    } catch (const ConfigError&) {
      return true;
    }
  }

  const TemporaryDirectory directory_;
};

TEST_P(EngineOnFaultyDrive, IsNeverWrong) {
  if (engine_is_refused()) GTEST_SKIP() << "io_uring is refused here";
  const Curve expected = train_tiny(plain_options(), kSteps).curve;
  std::uint64_t done = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const FaultPlan plan{.seed = seed,
                         .fail_rate = seed % 2 == 0 ? 0.0003 : 0,
                         .error_number = ENOSPC,
                         .corrupt_rate = seed % 2 == 1 ? 0.0003 : 0,
                         .delay_rate = 0.01,
                         .short_rate = 0.1};
    if (trains_right(plan, expected)) ++done;
  }
  EXPECT_GT(done, 0U);
  EXPECT_LT(done, kSeeds);
}

TEST_P(EngineOnFaultyDrive, ShortInterruptedAndLateTransfersDoNotShow) {
  if (engine_is_refused()) GTEST_SKIP() << "io_uring is refused here";
  const Curve expected = train_tiny(plain_options(), kSteps).curve;
  FaultPlan plan;
  plan.seed = 3;
  plan.short_rate = 0.5;
  plan.delay_rate = 0.02;
  EXPECT_TRUE(trains_right(plan, expected));
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineOnFaultyDrive,
                         ::testing::Values(IoEngineKind::kIoUring, IoEngineKind::kPosix),
                         [](const auto& info) {
                           return info.param == IoEngineKind::kPosix ? "posix" : "io_uring";
                         });

}  // namespace
}  // namespace terrace

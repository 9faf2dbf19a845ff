#include "bench/store_load.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/log.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

class StoreLoadTest : public ::testing::Test {
 protected:
  StoreLoad::Options options() const {
    StoreLoad::Options load;
    load.store.directories = {{.path = directory_.path(), .budget_bytes = std::nullopt}};
    load.total_bytes = kMiB;
    load.extent_bytes = 256 * kKiB;
    load.requests = 4;
    return load;
  }

  TemporaryDirectory directory_;
  SilentLog log_;
};

TEST_F(StoreLoadTest, EveryMixEndsAndCarriesSomething) {
  StoreLoad load(options(), log_);
  EXPECT_EQ(load.requests(), 4);
  for (const IoMix mix : {IoMix::kRead, IoMix::kWrite, IoMix::kMixed}) {
    for (const int requests : {0, 1, 4, 100}) {
      EXPECT_GT(load.run({.mix = mix, .requests = requests}).gb_per_s, 0);
    }
  }
}

TEST_F(StoreLoadTest, TimesItsRequests) {
  StoreLoad load(options(), log_);
  for (const IoMix mix : {IoMix::kRead, IoMix::kWrite, IoMix::kMixed}) {
    const IoRate rate = load.run({.mix = mix});
    EXPECT_GT(rate.latency_p50_s, 0);
    EXPECT_GE(rate.latency_p99_s, rate.latency_p50_s);
  }
}

// Without the stop, the run would go on for longer than a test may.
TEST_F(StoreLoadTest, AStopEndsIt) {
  StoreLoad load(options(), log_);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_GT(load.run({.seconds = 1e6, .stopped = stop.get_token()}).gb_per_s, 0);
}

}  // namespace
}  // namespace terrace

#include "runtime/cli/memlock_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <limits>

#include "base/bytes.h"

namespace terrace {
namespace {

using testing::HasSubstr;

HostLimits with_memlock(std::size_t bytes) {
  HostLimits limits;
  limits.total_bytes = 100 * kGiB;
  limits.available_bytes = 90 * kGiB;
  limits.memlock_limit_bytes = bytes;
  return limits;
}

constexpr UringFacts kCounted = {.counts_locked_memory = true};
constexpr UringFacts kFree = {.counts_locked_memory = false};

// By default the arena is about as large as the memory that can be used.
TEST(MemlockCheck, ALimitBelowTheArenaIsNotEnough) {
  for (const std::size_t bytes : {64 * kMiB, 89 * kGiB}) {
    const MachineCheck check = check_memlock(kCounted, with_memlock(bytes));
    EXPECT_EQ(check.status, CheckStatus::kWarn);
    EXPECT_THAT(check.value, HasSubstr("can register " + format_size(bytes) + " with io_uring"));
    EXPECT_THAT(check.remedy, HasSubstr("training runs without registration"));
  }
  EXPECT_EQ(check_memlock(kCounted, with_memlock(90 * kGiB)).status, CheckStatus::kOk);
}

TEST(MemlockCheck, ALimitThatIsNotCountedIsEnough) {
  const MachineCheck check = check_memlock(kFree, with_memlock(8 * kMiB));
  EXPECT_EQ(check.status, CheckStatus::kOk);
  EXPECT_THAT(check.value, HasSubstr("8.00 MiB, but io_uring does not count"));
  const std::size_t unlimited = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(check_memlock(kCounted, with_memlock(unlimited)).status, CheckStatus::kOk);
}

TEST(MemlockCheck, ALimitThatIsUsedUpIsNotEnough) {
  UringFacts facts = kCounted;
  facts.register_error = ENOMEM;
  const MachineCheck check = check_memlock(facts, with_memlock(95 * kGiB));
  EXPECT_EQ(check.status, CheckStatus::kWarn);
  EXPECT_THAT(check.value, HasSubstr("Cannot allocate memory"));
}

}  // namespace
}  // namespace terrace

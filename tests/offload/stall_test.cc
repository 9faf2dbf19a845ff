#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "offload/nvme_store.h"
#include "tests/offload/store_fixture.h"

// A drive that does not answer is reported.
namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kOfTheBlock = "offset 1048576,";

// Keeps the lines that were logged; other threads may wait for one.
class WarningLog final : public Log {
 public:
  void info(std::string_view /*line*/) override {}
  void warning(std::string_view line) override {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
    came_.notify_all();
  }
  // Waits until a line holds the text; returns false if none comes for a minute. On a busy machine
  // other blocks may take long too, and be reported first.
  bool wait_for(std::string_view text) {
    std::unique_lock lock(mutex_);
    return came_.wait_for(lock, std::chrono::minutes(1), [this, text] {
      return std::ranges::any_of(
          lines_, [text](const std::string& line) { return line.find(text) != line.npos; });
    });
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::string> lines_;  // guarded by mutex_
};

// Holds the second block up until its stall has been reported.
class StalledUntilNamed final : public SystemFaults {
 public:
  explicit StalledUntilNamed(WarningLog& log) : log_(log) {}

  SystemFault fate_of(const SystemCall& call) noexcept override {
    const bool transfers =
        call.kind == SystemCall::Kind::kRead || call.kind == SystemCall::Kind::kWrite;
    if (transfers && call.offset == kMiB) named_ = log_.wait_for(kOfTheBlock);
    return SystemFault::none(call);
  }
  bool named() const { return named_; }

 private:
  WarningLog& log_;
  std::atomic<bool> named_{false};
};

class Stall : public ::testing::TestWithParam<IoEngineKind> {};

TEST_P(Stall, IsNamedOnceWithItsPlace) {
  const ScratchDirectory scratch;
  WarningLog log;
  StalledUntilNamed faults(log);
  NvmeStoreOptions options;
  options.engine = GetParam();
  options.directories.push_back({scratch.make("slow drive"), std::nullopt});
  options.stall_seconds = 0.02;
  options.queue_depth = 1;  // so that the stall delays no other block
  options.faults = &faults;
  std::unique_ptr<BlockStore> store;
  try {
    store = make_nvme_store(options, log);
  } catch (const ConfigError&) {
    GTEST_SKIP() << "io_uring is refused here";
  }
  const ExtentId extent = store->create_extent(3 * kMiB);
  store->prepare();
  AlignedMemory bytes(3 * kMiB, store->alignment());
  bytes.fill(1);
  EXPECT_EQ(write_bytes(*store, extent, 0, bytes.span()).kind, IoOutcome::Kind::kDone);
  EXPECT_TRUE(faults.named());
  std::vector<std::string> about_the_block;
  for (const std::string& line : log.lines()) {
    if (line.find(kOfTheBlock) != std::string::npos) about_the_block.push_back(line);
  }
  ASSERT_EQ(about_the_block.size(), 1U);
  EXPECT_THAT(about_the_block[0], HasSubstr(options.directories[0].path + " has not answered"));
  EXPECT_THAT(about_the_block[0], HasSubstr("slots.bin"));
  EXPECT_THAT(about_the_block[0], HasSubstr("1048576 bytes"));
}

INSTANTIATE_TEST_SUITE_P(Engines, Stall,
                         ::testing::Values(IoEngineKind::kIoUring, IoEngineKind::kPosix),
                         [](const auto& info) {
                           return std::string(info.param == IoEngineKind::kPosix ? "posix"
                                                                                 : "io_uring");
                         });

}  // namespace
}  // namespace terrace

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "offload/nvme_store.h"
#include "tests/memory/no_more_threads.h"
#include "tests/offload/store_fixture.h"

// Tests the real engines, each on a real file, with everything that the system can answer. In the
// end the bytes are right, or the outcome names file, offset, length and reason.
namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::size_t kFaultyBlock = kMiB;
constexpr int kForever = 1'000'000;

// Changes the next `times` calls of one kind that begin in [first_offset, first_offset + a block).
class ScriptedFaults final : public SystemFaults {
 public:
  using Make = std::function<SystemFault(const SystemCall&)>;

  void set(SystemCall::Kind kind, std::uint64_t first_offset, int times, Make make) {
    const std::lock_guard lock(mutex_);
    kind_ = kind;
    first_offset_ = first_offset;
    left_ = times;
    make_ = std::move(make);
  }
  // Refuses the calls, however many bytes they ask for.
  void refuse(SystemCall::Kind kind, std::uint64_t first_offset, int times, int error_number) {
    set(kind, first_offset, times,
        [error_number](const SystemCall&) { return SystemFault{.shown = -error_number}; });
  }

  SystemFault fate_of(const SystemCall& call) noexcept override {
    const std::lock_guard lock(mutex_);
    const bool is_meant = call.kind == kind_ && call.offset >= first_offset_ &&
                          call.offset < first_offset_ + kFaultyBlock && left_ > 0;
    if (!is_meant) return SystemFault::none(call);
    --left_;
    ++met_;
    return make_(call);
  }
  int met() const { return met_; }

 private:
  std::mutex mutex_;
  SystemCall::Kind kind_ = SystemCall::Kind::kRead;  // the four from here: guarded by mutex_
  std::uint64_t first_offset_ = 0;
  int left_ = 0;
  Make make_;
  std::atomic<int> met_{0};
};

const char* name_of(IoEngineKind engine) {
  return engine == IoEngineKind::kIoUring ? "io_uring" : "posix";
}

class EngineFaults : public ::testing::TestWithParam<IoEngineKind> {
 protected:
  // Makes a store of four blocks and writes them.
  void SetUp() override {
    if (!make_store(scratch_.make("drive"))) GTEST_SKIP() << "io_uring is refused here";
    bytes_.fill(1);
    write_all().throw_if_failed();
  }

  bool make_store(const std::string& directory) {
    NvmeStoreOptions options;
    options.engine = GetParam();
    options.directories.push_back({directory, std::nullopt});
    options.queue_depth = 4;
    options.faults = &faults_;
    try {
      store_ = make_nvme_store(options, log_);
    } catch (const ConfigError& error) {
      // Either the engine is the requested one, or the machine does not have that engine.
      EXPECT_THAT(error.what(), HasSubstr("io_uring"));
      return false;
    }
    EXPECT_EQ(store_->paths().at(0).engine, name_of(GetParam()));
    extent_ = store_->create_extent(4 * kFaultyBlock);
    store_->prepare();
    for (const auto& job : fs::directory_iterator(directory)) file_ = job.path() / "slots.bin";
    return true;
  }

  IoOutcome write_all() { return write_bytes(*store_, extent_, 0, bytes_.span()); }
  IoOutcome read_all() {
    back_.clear();
    return read_bytes(*store_, extent_, 0, back_.span());
  }
  IoOutcome run_all(SystemCall::Kind kind) {
    return kind == SystemCall::Kind::kRead ? read_all() : write_all();
  }

  // Expects that the third block failed with this error, and that the outcome says so.
  void expect_failed(const IoOutcome& outcome, SystemCall::Kind kind, int error_number) const {
    const char* operation = kind == SystemCall::Kind::kRead ? "read" : "write";
    EXPECT_EQ(outcome.kind, IoOutcome::Kind::kFailed);
    EXPECT_EQ(outcome.where.operation, operation);
    EXPECT_EQ(outcome.where.path, file_.string());
    EXPECT_EQ(outcome.where.offset, 2 * kFaultyBlock);
    EXPECT_EQ(outcome.where.size, kFaultyBlock);
    EXPECT_EQ(outcome.where.error_number, error_number);
    try {
      outcome.throw_if_failed();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), HasSubstr(operation));
      EXPECT_THAT(error.what(), HasSubstr(file_.string()));
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(2 * kFaultyBlock)));
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(kFaultyBlock)));
      EXPECT_FALSE(error.remedy().empty());
    }
  }

  void expect_right() {
    write_all().throw_if_failed();
    read_all().throw_if_failed();
    EXPECT_TRUE(back_ == bytes_);
  }

  const ScratchDirectory scratch_;
  SilentLog log_;
  ScriptedFaults faults_;
  std::unique_ptr<BlockStore> store_;
  ExtentId extent_;
  fs::path file_;
  AlignedMemory bytes_{4 * kFaultyBlock, 4096};
  AlignedMemory back_{4 * kFaultyBlock, 4096};
};

constexpr SystemCall::Kind kTransfers[] = {SystemCall::Kind::kRead, SystemCall::Kind::kWrite};

TEST_P(EngineFaults, ErrorsAreNamedAndTheStoreGoesOn) {
  for (const int error_number : {ENOSPC, EIO, EINVAL, EFBIG, EDQUOT, EROFS}) {
    for (const SystemCall::Kind kind : kTransfers) {
      SCOPED_TRACE(std::strerror(error_number));
      faults_.refuse(kind, 2 * kFaultyBlock, 1, error_number);
      expect_failed(run_all(kind), kind, error_number);
      expect_right();
    }
  }
  EXPECT_EQ(faults_.met(), 12);
}

// A failed write is not read as if it had succeeded, though the old bytes may still be there.
TEST_P(EngineFaults, WhatAFailedWriteLeftIsNotData) {
  bytes_.fill(2);
  faults_.refuse(SystemCall::Kind::kWrite, 2 * kFaultyBlock, 1, ENOSPC);
  expect_failed(write_all(), SystemCall::Kind::kWrite, ENOSPC);
  const IoOutcome read = read_all();
  EXPECT_EQ(read.kind, IoOutcome::Kind::kCorrupt);
  EXPECT_EQ(read.where.offset, 2 * kFaultyBlock);
  expect_right();
}

TEST_P(EngineFaults, AStormOfInterruptionsIsSatOut) {
  for (const int error_number : {EINTR, EAGAIN}) {
    for (const SystemCall::Kind kind : kTransfers) {
      faults_.refuse(kind, 2 * kFaultyBlock, 90, error_number);
      run_all(kind).throw_if_failed();
      expect_right();
    }
  }
  EXPECT_EQ(faults_.met(), 4 * 90);
}

TEST_P(EngineFaults, InterruptionsWithoutEndAreAFailure) {
  for (const SystemCall::Kind kind : kTransfers) {
    faults_.refuse(kind, 2 * kFaultyBlock, kForever, EINTR);
    expect_failed(run_all(kind), kind, EINTR);
  }
}

// The sizes include those at which no aligned transfer can go on.
TEST_P(EngineFaults, ShortTransfersAreContinued) {
  for (const std::int64_t carried : {1, 511, 4096, 4097, 8191, 700'000, 1'048'575}) {
    for (const SystemCall::Kind kind : kTransfers) {
      SCOPED_TRACE(carried);
      faults_.set(kind, 2 * kFaultyBlock, 3, [carried](const SystemCall& call) {
        const auto shown = std::min(carried, static_cast<std::int64_t>(call.size_bytes) - 1);
        return SystemFault{.asked_bytes = round_up(static_cast<std::size_t>(shown), 4096),
                           .shown = shown};
      });
      bytes_.fill(static_cast<std::uint64_t>(carried));
      expect_right();
    }
  }
  EXPECT_GE(faults_.met(), 7 * 2 * 2);
}

TEST_P(EngineFaults, ATransferThatCarriesNothingIsAFailure) {
  for (const SystemCall::Kind kind : kTransfers) {
    faults_.set(kind, 2 * kFaultyBlock, 1,
                [](const SystemCall&) { return SystemFault{.shown = 0}; });
    expect_failed(run_all(kind), kind, 0);
  }
}

TEST_P(EngineFaults, AFlippedBitOfAReadIsNeverData) {
  for (const std::uint64_t bit :
       {std::uint64_t{0}, std::uint64_t{4'000'001}, 8 * kFaultyBlock - 1}) {
    faults_.set(SystemCall::Kind::kRead, 2 * kFaultyBlock, 1, [bit](const SystemCall& call) {
      return SystemFault{.asked_bytes = call.size_bytes, .flipped_bit = bit};
    });
    const IoOutcome outcome = read_all();
    EXPECT_EQ(outcome.kind, IoOutcome::Kind::kCorrupt);
    EXPECT_EQ(outcome.where.path, file_.string());
    EXPECT_EQ(outcome.where.offset, 2 * kFaultyBlock);
    EXPECT_EQ(outcome.where.size, kFaultyBlock);
    EXPECT_THROW(outcome.throw_if_failed(), CorruptData);
  }
  expect_right();
}

TEST_P(EngineFaults, SlowRequestsAreOnlySlow) {
  for (const SystemCall::Kind kind : kTransfers) {
    faults_.set(kind, kFaultyBlock, 2, [](const SystemCall& call) {
      SystemFault fault = SystemFault::none(call);
      fault.delay_us = 20'000;
      return fault;
    });
    expect_right();
  }
  EXPECT_EQ(faults_.met(), 2);  // a block of each direction
}

// --- what the system does by itself --------------------------------------------------------------

// If another process has made a file shorter, a read after its end finds nothing, not zeros.
TEST_P(EngineFaults, ReadsPastTheEndOfATruncatedFile) {
  for (const std::uint64_t size :
       {2 * kFaultyBlock, 2 * kFaultyBlock + 4096, 3 * kFaultyBlock - 1}) {
    SCOPED_TRACE(size);
    write_all().throw_if_failed();
    fs::resize_file(file_, size);
    expect_failed(read_all(), SystemCall::Kind::kRead, 0);
  }
  expect_right();
}

TEST_P(EngineFaults, AFileThatMayNotGrowIsEfbig) {
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 2 * kFaultyBlock;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const IoOutcome outcome = write_all();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  expect_failed(outcome, SystemCall::Kind::kWrite, EFBIG);
  expect_right();
}

// Space that the file system did not reserve may be gone when it is written to.
TEST_P(EngineFaults, ADiskThatFillsUpIsEnospc) {
  const std::string small = scratch_.make("small");
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=8m") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  faults_.refuse(SystemCall::Kind::kReserve, 0, 1, EOPNOTSUPP);
  ASSERT_TRUE(make_store(small));
  write_bytes(*store_, extent_, 0, bytes_.span().first(2 * kFaultyBlock)).throw_if_failed();
  std::ofstream other(small + "/other", std::ios::binary);
  while (other.write(reinterpret_cast<const char*>(bytes_.span().data()), 4096).flush().good()) {
  }
  expect_failed(write_all(), SystemCall::Kind::kWrite, ENOSPC);
  other.close();
  fs::remove(small + "/other");
  expect_right();
  store_.reset();
  ::umount2(small.c_str(), MNT_DETACH);
}

// Sends signals to every thread of the process, one after another, as long as it lives.
class SignalStorm {
 public:
  SignalStorm() {
    struct sigaction action = {};
    action.sa_handler = [](int) {};  // and no SA_RESTART: system calls are interrupted
    ::sigaction(SIGUSR2, &action, nullptr);
    thread_ = std::thread([this] { blow(); });
  }
  ~SignalStorm() {
    stop_.store(true);
    thread_.join();
    std::signal(SIGUSR2, SIG_IGN);
  }
  SignalStorm(const SignalStorm&) = delete;
  SignalStorm& operator=(const SignalStorm&) = delete;
  int sent() const { return sent_.load(); }

 private:
  void blow() {
    const auto self = static_cast<int>(::syscall(SYS_gettid));
    while (!stop_.load()) {
      for (const auto& task : fs::directory_iterator("/proc/self/task")) {
        const int thread = std::stoi(task.path().filename().string());
        if (thread == self) continue;
        ::syscall(SYS_tgkill, ::getpid(), thread, SIGUSR2);
        sent_.fetch_add(1);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<int> sent_{0};
  std::thread thread_;
};

TEST_P(EngineFaults, AStormOfSignalsDoesNotShow) {
  const SignalStorm storm;
  for (std::uint64_t i = 0; i < 30 || storm.sent() < 100; ++i) {
    bytes_.fill(i);
    expect_right();
  }
}

// --- before the first transfer -------------------------------------------------------------------

// Returns the error that is thrown when the system refuses to make the file, and expects an empty
// directory then.
template <typename Expected>
std::string refused_file(NvmeStoreOptions options, ScriptedFaults& faults, int error_number) {
  SilentLog log;
  faults.refuse(SystemCall::Kind::kOpen, 0, 1, error_number);
  std::string message;
  try {
    make_nvme_store(options, log);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Expected& error) {
    message = error.what();
  }
  EXPECT_TRUE(fs::is_empty(options.directories.at(0).path));
  return message;
}

TEST_P(EngineFaults, AFileThatCannotBeMadeIsNamed) {
  const std::string directory = scratch_.make("other");
  NvmeStoreOptions options;
  options.engine = GetParam();
  options.directories.push_back({directory, std::nullopt});
  options.faults = &faults_;
  for (const std::string& message : {refused_file<ConfigError>(options, faults_, EACCES),
                                     refused_file<OutOfMemory>(options, faults_, ENOSPC),
                                     refused_file<IoError>(options, faults_, EIO)}) {
    EXPECT_THAT(message, HasSubstr(directory));
  }
}

// Returns the error that prepare() throws when the system answers with this errno, and expects an
// empty directory then.
template <typename Expected>
std::string refused_preparation(NvmeStoreOptions options, ScriptedFaults& faults,
                                int error_number) {
  SilentLog log;
  faults.refuse(SystemCall::Kind::kReserve, 0, 1, error_number);
  const auto store = make_nvme_store(options, log);
  store->create_extent(kFaultyBlock);
  std::string message;
  try {
    store->prepare();
  } catch (const Expected& error) {
    message = error.what();
  }
  EXPECT_TRUE(fs::is_empty(options.directories[0].path));
  return message;
}

TEST_P(EngineFaults, SpaceThatIsNotReservedIsNamed) {
  NvmeStoreOptions options;
  options.engine = GetParam();
  options.directories.push_back({scratch_.make("other"), std::nullopt});
  options.faults = &faults_;
  for (const int error_number : {ENOSPC, EDQUOT, EFBIG}) {
    EXPECT_THAT(refused_preparation<OutOfMemory>(options, faults_, error_number),
                HasSubstr(options.directories[0].path));
  }
  EXPECT_THAT(refused_preparation<IoError>(options, faults_, EIO), HasSubstr("slots.bin"));
  // An interrupted reservation is tried again.
  faults_.refuse(SystemCall::Kind::kReserve, 0, 5, EINTR);
  const auto store = make_nvme_store(options, log_);
  store->create_extent(kFaultyBlock);
  store->prepare();
}

TEST_P(EngineFaults, AThreadThatDoesNotStartIsAnError) {
  const std::string directory = scratch_.make("other");
  NvmeStoreOptions options;
  options.engine = GetParam();
  options.directories.push_back({directory, std::nullopt});
  {
    const NoMoreThreads refused;
    EXPECT_THROW(make_nvme_store(options, log_), EnvironmentError);
  }
  EXPECT_TRUE(fs::is_empty(directory));
}

// --- all at once, from seeds ---------------------------------------------------------------------

TEST_P(EngineFaults, WhatIsDoneIsRight) {
  int done = 0;
  int failed = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    SeededFaults faults({.seed = seed,
                         .fail_rate = 0.05,
                         .error_number = EIO,
                         .corrupt_rate = 0.05,
                         .delay_rate = 0.05,
                         .short_rate = 0.3},
                        4096);
    NvmeStoreOptions options;
    options.engine = GetParam();
    options.directories.push_back({scratch_.make("seeded"), std::nullopt});
    options.queue_depth = 4;
    options.faults = &faults;
    const auto store = make_nvme_store(options, log_);
    const ExtentId extent = store->create_extent(4 * kFaultyBlock);
    store->prepare();
    bytes_.fill(seed);
    back_.clear();
    const IoOutcome written = write_bytes(*store, extent, 0, bytes_.span());
    const IoOutcome read = read_bytes(*store, extent, 0, back_.span());
    const bool is_done = read.kind == IoOutcome::Kind::kDone;
    ++(is_done ? done : failed);
    if (!is_done) continue;
    EXPECT_EQ(written.kind, IoOutcome::Kind::kDone);
    EXPECT_TRUE(back_ == bytes_);
  }
  EXPECT_GT(done, 0);
  EXPECT_GT(failed, 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineFaults,
                         ::testing::Values(IoEngineKind::kIoUring, IoEngineKind::kPosix),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace terrace

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "offload/nvme_store.h"
#include "offload/stall_watch.h"
#include "tests/offload/denied_calls.h"
#include "tests/offload/store_fixture.h"

// Tests the store where the system refuses something. Each case takes a right away from a child
// process, and examines the store there.
namespace terrace {
namespace {

// Makes threads fail to start, as where the limit on threads is reached.
bool forbid_threads() { return forbid(SYS_clone3, SYS_clone, EAGAIN); }

std::unique_ptr<BlockStore> make_store(const std::string& directory, IoEngineKind engine) {
  NvmeStoreOptions options;
  options.engine = engine;
  options.directories.resize(1);
  options.directories[0].path = directory;
  static SilentLog log;  // outlives the store
  return make_nvme_store(options, log);
}

// Writes and reads some bytes, with memory registered.
bool carries_bytes(BlockStore& store) {
  const std::size_t size = 2 * kMiB + 1;
  constexpr std::size_t kRegistered = 16 * kMiB;
  const ExtentId extent = store.create_extent(size);
  store.prepare();
  AlignedMemory registered(kRegistered, store.alignment());
  const std::span<std::byte> bytes = registered.span().first(round_up(size, store.alignment()));
  AlignedMemory back(size, store.alignment());
  store.register_memory(registered.span());
  registered.fill(1);
  write_bytes(store, extent, 0, bytes).throw_if_failed();
  read_bytes(store, extent, 0, back.span()).throw_if_failed();
  return std::ranges::equal(back.span(), bytes);
}

bool says(const BlockStore& store, const std::string& engine, const std::string& remark) {
  const StorePath path = store.paths().at(0);
  const bool as_said =
      path.engine == engine &&
      (remark.empty() ? path.remark.empty() : path.remark.find(remark) != std::string::npos);
  if (!as_said) std::fprintf(stderr, "%s: %s\n", path.engine.c_str(), path.remark.c_str());
  return as_said;
}

bool io_uring_works(const std::string& directory) {
  try {
    make_store(directory, IoEngineKind::kIoUring);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

class EngineChoice : public ::testing::Test {
 protected:
  ScratchDirectory scratch_;
  std::string directory_ = scratch_.make("drive");
};

TEST_F(EngineChoice, AutoFallsBackToPosixAndSaysWhy) {
  const ExitCode code = in_child([&] {
    if (!forbid_io_uring()) return kCannotTell;
    const auto store = make_store(directory_, IoEngineKind::kAuto);
    return expected_if(says(*store, "posix", "Operation not permitted") && carries_bytes(*store));
  });
  if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(code, kAsExpected);
}

// A sandbox may allow a ring to be made but not to be used.
TEST_F(EngineChoice, AutoFallsBackToPosixWhereOnlySomeCallsOfIoUringAreRefused) {
  if (!io_uring_works(directory_)) GTEST_SKIP() << "io_uring is forbidden here";
  for (const auto& [call, name] : {std::pair(SYS_io_uring_enter, "io_uring_enter"),
                                   std::pair(SYS_io_uring_register, "io_uring_register")}) {
    for (const int error_number : {EPERM, ENOSYS, EACCES}) {
      SCOPED_TRACE(name);
      const ExitCode code = in_child([&, call = call, name = name] {
        if (!forbid(call, call, error_number)) return kCannotTell;
        const auto store = make_store(directory_, IoEngineKind::kAuto);
        return expected_if(says(*store, "posix", name) && carries_bytes(*store));
      });
      if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
      EXPECT_EQ(code, kAsExpected) << error_number;
    }
  }
}

TEST_F(EngineChoice, SpaceThatMayNotBeReservedIsUsedAllTheSame) {
  const ExitCode code = in_child([&] {
    if (!forbid(SYS_fallocate, SYS_fallocate, EPERM)) return kCannotTell;
    const auto store = make_store(directory_, IoEngineKind::kPosix);
    return expected_if(carries_bytes(*store) && says(*store, "posix", "cannot reserve space"));
  });
  if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(code, kAsExpected);
}

TEST_F(EngineChoice, AnEngineAskedForByNameIsNotReplaced) {
  const ExitCode code = in_child([&] {
    if (!forbid(SYS_io_uring_setup, SYS_io_uring_enter, EPERM)) return kCannotTell;
    try {
      make_store(directory_, IoEngineKind::kIoUring);
      return kWrong;
    } catch (const ConfigError& error) {
      const std::string what = error.what();
      return expected_if(what.find("io_uring") != std::string::npos && !error.remedy().empty() &&
                         std::filesystem::is_empty(directory_));
    }
  });
  if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(code, kAsExpected);
}

TEST_F(EngineChoice, WithLittleLockedMemoryBuffersAreNotRegistered) {
  if (!io_uring_works(directory_)) GTEST_SKIP() << "io_uring is forbidden here";
  const ExitCode code = in_child([&] {
    if (!limit_locked_memory()) return kCannotTell;
    const auto store = make_store(directory_, IoEngineKind::kIoUring);
    const bool carried = carries_bytes(*store);
    return expected_if(carried && says(*store, "io_uring", "ulimit -l") &&
                       !store->paths()[0].registered_buffers);
  });
  if (code == kCannotTell) GTEST_SKIP() << "capabilities cannot be given up here";
  EXPECT_EQ(code, kAsExpected);
}

TEST_F(EngineChoice, AWatchThatDoesNotStartIsAnErrorOfTheEnvironment) {
  const ExitCode code = in_child([&] {
    if (!forbid_threads()) return kCannotTell;
    try {
      const StallWatch watch({}, 10, [](const StallWatch::Stalled&) {});
      return kWrong;
    } catch (const EnvironmentError& error) {
      return expected_if(error.remedy().find("ulimit -u") != std::string::npos);
    }
  });
  if (code == kCannotTell) GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(code, kAsExpected);
}

TEST_F(EngineChoice, PosixWhenAskedForNeedsNoRemark) {
  const auto store = make_store(directory_, IoEngineKind::kPosix);
  EXPECT_EQ(store->paths()[0].engine, "posix");
  EXPECT_EQ(store->paths()[0].remark.find("io_uring"), std::string::npos);
}

TEST_F(EngineChoice, AFileSystemInMemoryIsUsedBufferedAndRefusedWhenFull) {
  const ExitCode code = in_child([&] {
    if (!mount_memory(directory_, "8m")) return kCannotTell;
    auto store = make_store(directory_, IoEngineKind::kAuto);
    const bool carried = carries_bytes(*store) && !store->paths()[0].direct_io &&
                         store->paths()[0].remark.find("page cache") != std::string::npos;
    store = make_store(directory_, IoEngineKind::kAuto);
    store->create_extent(9 * kMiB);
    try {
      store->prepare();
      return kWrong;
    } catch (const OutOfMemory&) {
      return expected_if(carried && std::filesystem::is_empty(directory_));
    }
  });
  if (code == kCannotTell) GTEST_SKIP() << "file systems cannot be mounted here";
  EXPECT_EQ(code, kAsExpected);
}

}  // namespace
}  // namespace terrace

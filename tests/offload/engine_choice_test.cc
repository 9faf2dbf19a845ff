#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "offload/nvme_store.h"
#include "offload/stall_watch.h"
#include "tests/offload/store_fixture.h"

// What the store does where the system refuses something. Each case takes a right away from a child
// process, and looks at the store there.
namespace terrace {
namespace {

enum ExitCode : int { kAsExpected = 0, kWrong = 1, kCannotTell = 77 };

// From now on either system call ends with the errno.
bool forbid(std::uint32_t call, std::uint32_t other_call, std::uint32_t error_number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error_number),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {.len = std::size(filter), .filter = filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What containers do: io_uring_setup ends with EPERM.
bool forbid_io_uring() { return forbid(SYS_io_uring_setup, SYS_io_uring_setup, EPERM); }

// As where the limit on threads is reached.
bool forbid_threads() { return forbid(SYS_clone3, SYS_clone, EAGAIN); }

// Less memory may be locked than a store is given to register, also where the user is root. The
// ring itself takes some of it.
bool limit_locked_memory() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  for (const int capability : {CAP_IPC_LOCK, CAP_SYS_RESOURCE, CAP_SYS_ADMIN}) {
    data[capability / 32].effective &= ~(1U << (capability % 32));
  }
  const struct rlimit small = {.rlim_cur = 8 * kMiB, .rlim_max = 8 * kMiB};
  return ::setrlimit(RLIMIT_MEMLOCK, &small) == 0 && ::syscall(SYS_capset, &header, data) == 0;
}

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

// Runs `expectation` in a child process, so that rights taken away there stay there.
ExitCode in_child(const std::function<ExitCode()>& expectation) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ExitCode code = kWrong;
    try {
      code = expectation();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(code);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return kWrong;
  return static_cast<ExitCode>(WEXITSTATUS(status));
}

ExitCode expected_if(bool as_expected) { return as_expected ? kAsExpected : kWrong; }

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

TEST_F(EngineChoice, AnEngineAskedForByNameIsNotReplaced) {
  const ExitCode code = in_child([&] {
    if (!forbid_io_uring()) return kCannotTell;
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
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=8m") != 0) {
      return kCannotTell;
    }
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

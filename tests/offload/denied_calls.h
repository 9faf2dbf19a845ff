#pragma once

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

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <string>

// A child process from which rights are taken away, for tests of behaviour where the system refuses
// something.
namespace terrace {

enum ExitCode : int { kAsExpected = 0, kWrong = 1, kCannotTell = 77 };

inline ExitCode expected_if(bool as_expected) { return as_expected ? kAsExpected : kWrong; }

// Makes both system calls fail with the errno from now on.
inline bool forbid(std::uint32_t call, std::uint32_t other_call, std::uint32_t error_number) {
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

// Makes io_uring_setup fail with EPERM, as containers do.
inline bool forbid_io_uring() { return forbid(SYS_io_uring_setup, SYS_io_uring_setup, EPERM); }

// Allows less memory to be locked than a store is given to register, even where the user is root.
// The ring itself takes some of it.
inline bool limit_locked_memory() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  for (const int capability : {CAP_IPC_LOCK, CAP_SYS_RESOURCE, CAP_SYS_ADMIN}) {
    data[capability / 32].effective &= ~(1U << (capability % 32));
  }
  constexpr rlim_t kLockedBytes = 8 << 20;
  const struct rlimit small = {.rlim_cur = kLockedBytes, .rlim_max = kLockedBytes};
  return ::setrlimit(RLIMIT_MEMLOCK, &small) == 0 && ::syscall(SYS_capset, &header, data) == 0;
}

// Mounts a file system in memory of that size ("8m") on the directory, for this process alone.
inline bool mount_memory(const std::string& directory, const std::string& size) {
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", directory.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
}

// Runs `expectation` in a child process, so that the rights taken away there are missing only
// there.
inline ExitCode in_child(const std::function<ExitCode()>& expectation) {
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

}  // namespace terrace

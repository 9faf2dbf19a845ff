#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

namespace terrace {

// Copies from an address of another process of this user into `to`, by process_vm_readv(2). Returns
// 0 or an errno: EPERM where the system forbids it (kernel.yama.ptrace_scope, a container's seccomp
// profile), ESRCH where the process has ended, EFAULT where it has no such memory. Any thread.
int read_memory_of(pid_t process, const std::byte* address, std::span<std::byte> to);

}  // namespace terrace

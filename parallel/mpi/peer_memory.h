#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// Copies from an address of another process of this user into `to`, by process_vm_readv(2). Returns
// 0 or an errno: EPERM where the system forbids it (kernel.yama.ptrace_scope, a container's seccomp
// profile), ESRCH where the process has ended, EFAULT where it has no such memory. Any thread.
int read_memory_of(pid_t process, const std::byte* address, std::span<std::byte> to);

// A value in the memory of a process, by which other processes find out whether they can read that
// memory. Processes exchange it as bytes.
struct PeerMark {
  pid_t process = 0;
  std::uint64_t value = 0;
  const std::uint64_t* address = nullptr;  // in that process
};
// Marks `value` of this process, which stays there until all have looked.
PeerMark mark_of(const std::uint64_t& value);
// Returns a value to mark that other processes do not have by chance.
std::uint64_t random_mark_value();
// Returns whether this process can read the marked value where it is. Any thread.
bool can_read(const PeerMark& mark);

}  // namespace terrace

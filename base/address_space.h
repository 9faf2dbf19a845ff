#pragma once

#include <cstddef>
#include <optional>
#include <string>

// The limit on the addresses that a process may have mapped (RLIMIT_AS, ulimit -v), which batch
// systems set. It counts what is reserved, whether or not there is memory behind it.
namespace terrace {

struct AddressSpace {
  std::optional<std::size_t> limit_bytes;  // none: there is no limit
  std::size_t used_bytes = 0;              // mapped by this process

  // Returns the bytes that can still be mapped, or the largest number if there is no limit.
  std::size_t left_bytes() const;
};

AddressSpace read_address_space();

// Returns the bytes of a new thread's stack.
std::size_t thread_stack_bytes();

// Returns what to do when a thread does not start, because the limit on threads is reached or
// because no addresses are left for its stack.
std::string remedy_for_threads();

}  // namespace terrace

#pragma once

namespace terrace {

// The uses of io_uring that the system allows this process.
struct UringFacts {
  // Whether registered memory counts towards the limit on locked memory. It does not with the
  // capability CAP_IPC_LOCK.
  bool counts_locked_memory = false;
  // Why not even one page can be registered within the limit, as an errno; 0 where one can.
  int register_error = 0;
};

// Tries it on this thread, with a ring that transfers nothing. For a moment the process may lock no
// memory, so no other thread may lock memory meanwhile. Throws UringRefused where a ring cannot be
// made.
UringFacts probe_uring();

}  // namespace terrace

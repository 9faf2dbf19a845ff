#pragma once

namespace terrace {

// What the system lets this process do with io_uring.
struct UringFacts {
  // Whether memory that is registered counts towards the limit on locked memory; it does not with
  // the capability CAP_IPC_LOCK.
  bool counts_locked_memory = false;
  // Why not even a page can be registered within the limit: an errno; 0 where one can.
  int register_error = 0;
};

// Tries it with a ring that carries nothing, on this thread. For a moment the process may lock no
// memory: no other thread does meanwhile. Throws UringRefused where a ring cannot be made.
UringFacts probe_uring();

}  // namespace terrace

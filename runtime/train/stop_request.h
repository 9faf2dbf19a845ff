#pragma once

#include <atomic>

namespace terrace {

// What a signal handler and a run tell each other.
struct StopRequest {
  std::atomic<bool> is_made{false};   // by the handler; polled between steps
  std::atomic<bool> is_heard{false};  // by the run, when it has come to its steps
  static_assert(std::atomic<bool>::is_always_lock_free);  // a handler can use them
};

}  // namespace terrace

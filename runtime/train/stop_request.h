#pragma once

#include <atomic>

namespace terrace {

// The flags through which a signal handler and a run talk to each other.
struct StopRequest {
  std::atomic<int> signal{0};         // set by the handler, 0 before; polled between steps
  std::atomic<bool> is_heard{false};  // set by the run, when it has reached its steps
  static_assert(std::atomic<int>::is_always_lock_free &&
                std::atomic<bool>::is_always_lock_free);  // a handler can use them

  bool is_made() const { return signal != 0; }
};

}  // namespace terrace

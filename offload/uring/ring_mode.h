#pragma once

#include <cstdint>

namespace terrace {

// How the kernel runs the work that remains when a transfer ends.
enum class TaskRun : std::uint8_t {
  kDeferred,      // when the ring's one thread asks for ends (Linux 6.1)
  kSingleIssuer,  // at once; one thread submits (Linux 6.0)
  kPlain,         // at once; any thread may submit
};

// The requested mode of a ring. If the kernel does not know a mode, the next weaker one is used.
struct RingMode {
  TaskRun task_run = TaskRun::kDeferred;
  bool registered_buffers = true;
  friend bool operator==(const RingMode&, const RingMode&) = default;
};

}  // namespace terrace

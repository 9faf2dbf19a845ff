#pragma once

#include <cstddef>
#include <string>

#include "offload/uring/bare_loop.h"

namespace terrace {

// "read", "write", "mixed".
std::string name_of(IoMix mix);

// The way in which drives are reached without the store, as the system allows.
enum class IoWay : std::uint8_t {
  kRegistered,  // io_uring, memory registered with it
  kUring,       // io_uring, where the limit on locked memory is too small for that
  kThreads,     // pread and pwrite, where io_uring is forbidden
};

// The figures of one measurement of I/O.
struct IoRate {
  double gb_per_s = 0;       // both directions together
  double cpu_ms_per_gb = 0;  // of the whole process
  // Seconds from the start of a request to its end, which half of the requests, or 99 of 100, did
  // not exceed; 0 for a tool that does not time its requests.
  double latency_p50_s = 0;
  double latency_p99_s = 0;
};

// A block size and a number of blocks in flight.
struct IoShape {
  std::size_t block_bytes = 0;
  int depth = 1;

  bool operator==(const IoShape&) const = default;
};

// "1.00 MiB, depth 8".
std::string to_text(const IoShape& shape);

}  // namespace terrace

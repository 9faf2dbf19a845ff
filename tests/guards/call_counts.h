#pragma once

#include <atomic>
#include <cstdint>

// The counters that call_counter.cc keeps in a file, for other processes that map the same file.
namespace terrace {

// Names the environment variable with the path of the file.
inline constexpr const char* kCallCountsPath = "TERRACE_CALL_COUNTS";

struct CallCounts {
  std::atomic<std::int64_t> pid;           // of the process that counts
  std::atomic<std::int64_t> allocations;   // calls of malloc and its relatives
  std::atomic<std::int64_t> copied_bytes;  // by memcpy and memmove
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

}  // namespace terrace

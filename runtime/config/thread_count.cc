#include "runtime/config/thread_count.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "memory/host/host_limits.h"

namespace terrace {

int most_threads() {
  constexpr int kAlways = 256;
  constexpr int kPerProcessor = 4;
  return std::max(kAlways, kPerProcessor * read_host_limits().affinity_cpus);
}

int read_threads(const FlagValue& value) {
  const std::int64_t threads = value.integer(1, std::numeric_limits<int>::max());
  const int most = most_threads();
  if (threads > most) {
    value.refuse(fmt::format("here a process computes with at most {} threads", most),
                 "give as many as there are processors, or leave the flag out");
  }
  return static_cast<int>(threads);
}

}  // namespace terrace

#pragma once

#include <cstdint>
#include <span>

#include "bench/io_load.h"
#include "offload/direct_file.h"

namespace terrace {

// What the threads carry, and for how long.
struct BareThreadLoad {
  IoShape shape;
  IoMix mix;
  double seconds = 0;
};

// BareLoop::run() where io_uring is forbidden: a thread for every block in flight, each with pread
// and pwrite. `memory` holds as many blocks or more; all of it is used in turn.
std::uint64_t run_bare_threads(DirectFile& file, const FileRange& range,
                               std::span<std::byte> memory, const BareThreadLoad& load);

}  // namespace terrace

#pragma once

#include <cstdint>
#include <span>

#include "bench/io_load.h"
#include "offload/direct_file.h"

namespace terrace {

// The load that the threads carry, and for how long.
struct BareThreadLoad {
  IoShape shape;
  IoMix mix;
  double seconds = 0;
};

// Does what BareLoop::run() does, where io_uring is forbidden: with a thread for every block in
// flight, each with pread and pwrite. `memory` holds at least as many blocks; all of it is used in
// turn.
std::uint64_t run_bare_threads(DirectFile& file, const FileRange& range,
                               std::span<std::byte> memory, const BareThreadLoad& load);

}  // namespace terrace

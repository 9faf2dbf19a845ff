#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/host/worker_arena.h"
#include "runtime/session/parameter_table.h"
#include "runtime/session/state_home.h"

namespace terrace {

// Checksums of the parameters that an update overwrites without reading them, bf16 and fp16 ones
// beside a master: so that what somebody else wrote into one is not lost in silence.
class ParameterMarks {
 public:
  // Borrows all.
  ParameterMarks(const ParameterTable& table, const StateHome& home, WorkerArena& workers);

  // Remembers a chunk's parameters as they are.
  void take(std::size_t chunk);
  // Throws SessionError (kParameterChanged) naming a tensor of which a chunk is not as remembered.
  void check(std::span<const std::size_t> chunks) const;

 private:
  bool has_marks(std::size_t chunk) const;
  std::uint64_t hash_part(std::size_t chunk, std::int64_t part) const;

  const ParameterTable& table_;
  const StateHome& home_;
  WorkerArena& workers_;
  std::vector<std::uint64_t> marks_;  // of the parts of each chunk
};

}  // namespace terrace

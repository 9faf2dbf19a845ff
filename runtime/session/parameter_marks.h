#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "memory/host/worker_arena.h"
#include "runtime/session/parameter_memory.h"
#include "runtime/session/parameter_table.h"
#include "runtime/session/state_home.h"

namespace terrace {

// Checksums of the parameters that an update overwrites without reading them, bf16 and fp16 ones
// beside a master: so that what somebody else wrote into one is not lost in silence. Of
// a chunk that a GPU has, the first ParameterMemory::kSampleBytes alone: all of it would have to
// come over the link once more in each step.
class ParameterMarks {
 public:
  struct Parts {
    const ParameterTable& table;
    const StateHome& home;
    WorkerArena& workers;
    ParameterMemory& memory;
  };
  explicit ParameterMarks(const Parts& parts);

  // Remembers a chunk's parameters, which these are.
  void take(std::size_t chunk, std::span<const std::byte> parameters);
  // Remembers those of all chunks as they are.
  void take_all();
  // Throws SessionError (kParameterChanged) naming a tensor of which a chunk is not as remembered.
  void check(std::span<const std::size_t> chunks) const;

 private:
  bool has_marks(std::size_t chunk) const;
  // Of the chunks, those with marks that are on a GPU, or those that are not.
  std::vector<std::size_t> marked(std::span<const std::size_t> chunks, bool on_gpu) const;
  // Calls body(chunk, bytes) with what there is of these on GPUs.
  void sample(std::span<const std::size_t> chunks,
              FunctionRef<void(std::size_t chunk, std::span<const std::byte> bytes)> body) const;

  const Parts parts_;
  std::vector<std::uint64_t> marks_;  // of the parts of each chunk
};

}  // namespace terrace

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

// Checksums of the parameters that an update overwrites without reading them: bf16 and fp16
// parameters with a master. With them a value that somebody else wrote into a parameter is not lost
// in silence. For a chunk on a GPU they cover only the first ParameterMemory::kSampleBytes, because
// the whole chunk would have to come over the link once more in each step.
class ParameterMarks {
 public:
  struct Parts {
    const ParameterTable& table;
    const StateHome& home;
    WorkerArena& workers;
    ParameterMemory& memory;
  };
  explicit ParameterMarks(const Parts& parts);

  // Remembers a chunk's parameters, which are given.
  void take(std::size_t chunk, std::span<const std::byte> parameters);
  // Remembers the parameters of all chunks as they are.
  void take_all();
  // Throws SessionError (kParameterChanged), which names the tensor, if a chunk of a tensor is not
  // as remembered.
  void check(std::span<const std::size_t> chunks) const;

 private:
  bool has_marks(std::size_t chunk) const;
  // Returns the chunks with marks that are on a GPU, or the ones that are not.
  std::vector<std::size_t> marked(std::span<const std::size_t> chunks, bool on_gpu) const;
  // Calls body(chunk, bytes) for the chunks with marks that are on GPUs, with their first bytes.
  void sample(std::span<const std::size_t> chunks,
              FunctionRef<void(std::size_t chunk, std::span<const std::byte> bytes)> body) const;

  const Parts parts_;
  std::vector<std::uint64_t> marks_;  // of the parts of each chunk
};

}  // namespace terrace

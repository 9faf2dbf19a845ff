#pragma once

#include <cstddef>
#include <span>

#include "base/function_ref.h"
#include "runtime/session/gpu_memory.h"
#include "runtime/session/parameter_table.h"
#include "runtime/session/state_home.h"

namespace terrace {

// The parameters of a session's tensors as the host reads and writes them, chunk by chunk: in place
// where they are memory of the host, else in staging, from and to which they are copied. Used by
// one thread at a time, except order_after_callers().
class ParameterMemory {
 public:
  // The bytes that sample() reads of each chunk on a GPU.
  static constexpr std::size_t kSampleBytes = 4096;

  // Borrows both.
  ParameterMemory(const ParameterTable& table, GpuMemory& gpus) : table_(table), gpus_(gpus) {}

  bool is_on_gpu(const StateChunk& chunk) const;
  // Make the copies from now on wait for the work that the callers' streams have been given so far:
  // the streams of all tensors, of the tensors whose parameter is its own master, or of one tensor.
  void order_after_callers();
  void order_masters_after_callers();
  void order_after_caller(std::int32_t tensor);

  // Returns the parameters of a chunk that is on the host. Any thread may call it.
  std::span<std::byte> host_bytes(const StateChunk& chunk) const;
  // Returns the parameters of a chunk, good until the next call.
  std::span<std::byte> read(const StateChunk& chunk);
  // Returns a place for them, which must be written as a whole before write_back().
  std::span<std::byte> room(const StateChunk& chunk);
  // Starts to copy the bytes that read() or room() gave last for the chunk back to the chunk's own
  // place.
  void write_back(const StateChunk& chunk);
  // Waits until everything is written back.
  void wait();
  // Returns an object whose destructor waits for all copies of parameters, also after an error.
  [[nodiscard]] SettledCopies settled() { return {gpus_, GpuMemory::kParameterPiece}; }
  // Calls body(i, bytes) with the first bytes of each of these chunks, which are on GPUs.
  void sample(std::span<const StateChunk* const> chunks,
              FunctionRef<void(std::size_t i, std::span<const std::byte> bytes)> body);

 private:
  void order(bool only_masters);
  DeviceBytes bytes_of(const StateChunk& chunk) const;

  const ParameterTable& table_;
  GpuMemory& gpus_;
  std::size_t piece_ = GpuMemory::kParameterPiece;  // the one in use
};

}  // namespace terrace

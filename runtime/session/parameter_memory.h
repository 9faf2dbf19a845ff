#pragma once

#include <cstddef>
#include <span>

#include "base/function_ref.h"
#include "runtime/session/gpu_memory.h"
#include "runtime/session/parameter_table.h"
#include "runtime/session/state_home.h"

namespace terrace {

// The parameters of a session's tensors as the host reads and writes them, chunk by chunk: in place
// where they are memory of the host, else in staging, from and to which they are copied. One thread
// at a time, but for order_after_callers().
class ParameterMemory {
 public:
  // Of each chunk that a GPU has, what sample() reads.
  static constexpr std::size_t kSampleBytes = 4096;

  // Borrows both.
  ParameterMemory(const ParameterTable& table, GpuMemory& gpus) : table_(table), gpus_(gpus) {}

  bool is_on_gpu(const StateChunk& chunk) const;
  // What is copied from now on comes after what the callers' streams have been given so far: those
  // of all tensors, of those whose parameter is its own master, or of one.
  void order_after_callers();
  void order_masters_after_callers();
  void order_after_caller(std::int32_t tensor);

  // The parameters of a chunk that is on the host; any thread.
  std::span<std::byte> host_bytes(const StateChunk& chunk) const;
  // The parameters of a chunk, good until the next call.
  std::span<std::byte> read(const StateChunk& chunk);
  // A place for them, which is written whole before write_back().
  std::span<std::byte> room(const StateChunk& chunk);
  // Starts to bring what read() or room() of the chunk gave last back to where it belongs.
  void write_back(const StateChunk& chunk);
  // Waits for all that was written back.
  void wait();
  // Returns what waits for all copies of parameters when it goes, also after an error.
  [[nodiscard]] SettledCopies settled() { return {gpus_, GpuMemory::kParameterPiece}; }
  // Calls body(i, bytes) with the first bytes of each of these chunks, which GPUs have.
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

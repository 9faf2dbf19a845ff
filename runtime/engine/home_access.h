#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/function_ref.h"
#include "memory/device.h"
#include "memory/host/host_memory.h"
#include "offload/block_store.h"
#include "runtime/step/lane_executor.h"
#include "runtime/step/step_model.h"

namespace terrace {

// Reads and writes the homes of states that last from step to step, for initialisation, checkpoints
// and export. Homes are written when no run is in flight; they are read then, and beside runs that
// a HomeGate keeps from changing them. Used by one thread at a time. Those are parameters, in the
// compute type, and what updates keep: optimizer state as optim/state_format.h lays out a chunk.
// Needs a few small buffers, whatever the tier.
class HomeAccess {
 public:
  // The bytes of those buffers, where blocks of a drive are no larger than pieces of a copy.
  static std::size_t buffer_bytes(bool has_drive);

  // Borrows all; `store` may be null if the program has no NVMe buffers.
  HomeAccess(const Program& program, const StepModel& model, const ExecutorMemory& memory,
             Device& device, BlockStore* store);

  // Bytes [first, first + out.size()) of what is at home here of a chunk. Throws IoError,
  // CorruptData, DeviceError.
  void read(StateClass state, std::int32_t unit, std::int64_t chunk, std::size_t first,
            std::span<std::byte> out);
  // Replaces it: `fill` is called for piece after piece, front to back, and sets all of each; or
  // none, and returns false for one that is zero. What is zero is not written to a drive.
  void write(StateClass state, std::int32_t unit, std::int64_t chunk,
             FunctionRef<bool(std::size_t first, std::span<std::byte> piece)> fill);
  // Gives back the pages of the bounce buffer, which holds nothing between calls.
  void give_pages_back() { bounce_.give_pages_back(); }

 private:
  struct Place {
    Tier tier = Tier::kHost;
    std::span<std::byte> bytes;  // in memory
    ExtentId extent;             // on NVMe
    std::size_t size_bytes = 0;
  };

  Place place_of(StateClass state, std::int32_t unit, std::int64_t chunk) const;
  void copy(std::span<std::byte> target, std::span<const std::byte> source);
  // Bytes of a place from `first` on, and memory of the bounce buffer for them.
  struct PlacePart {
    const Place& place;
    std::size_t first = 0;
    std::span<std::byte> memory;
  };
  PlacePart part_at(const Place& place, std::size_t first, std::size_t piece);
  void begin(IoRequest::Direction direction, const PlacePart& part, IoCompletion& completion);

  const Program& program_;
  const StepModel& model_;
  const ExecutorMemory& memory_;
  BlockStore* store_;
  std::map<BufferKey, BufferId> persistent_;
  const std::size_t piece_bytes_;
  HostMemory bounce_;  // several pieces
  // Last: its copies use the above.
  std::unique_ptr<Stream> stream_;
};

}  // namespace terrace

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
// and export. These states are parameters, in the compute type, and optimizer state as
// optim/state_format.h lays out a chunk. Homes are written only when no run is in flight. They are
// read then, and also beside runs that a HomeGate keeps from changing them. Used by one thread at a
// time. Needs a few small buffers, whatever the tier.
class HomeAccess {
 public:
  // Returns the bytes of those buffers, where blocks of a drive are no larger than pieces of a
  // copy.
  static std::size_t buffer_bytes(bool has_drive);

  // Borrows all; `store` may be null if the program has no NVMe buffers.
  HomeAccess(const Program& program, const StepModel& model, const ExecutorMemory& memory,
             Device& device, BlockStore* store);

  // Reads bytes [first, first + out.size()) of the part of a chunk that is at home here. Throws
  // IoError, CorruptData, DeviceError.
  void read(StateClass state, std::int32_t group, std::int64_t chunk, std::size_t first,
            std::span<std::byte> out);
  // Returns the bytes that read() has read from drives so far: whole blocks.
  std::size_t bytes_read() const { return bytes_read_; }
  // Replaces that part. `fill` is called for one piece after another, front to back. It sets all of
  // a piece; for a piece that is zero it may set nothing and return false. Zeros are not written to
  // a drive.
  void write(StateClass state, std::int32_t group, std::int64_t chunk,
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

  Place place_of(StateClass state, std::int32_t group, std::int64_t chunk) const;
  void copy(std::span<std::byte> target, std::span<const std::byte> source);
  // Bytes of a place from `first` on, and the memory of the bounce buffer for them.
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
  std::size_t bytes_read_ = 0;
  HostMemory bounce_;  // several pieces
  // Last: its copies use the above.
  std::unique_ptr<Stream> stream_;
};

}  // namespace terrace

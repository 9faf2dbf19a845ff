#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/step/lane_executor.h"
#include "runtime/step/step_model.h"

namespace terrace {

// Checksums of what the host's updates read from and write to NVMe. An update takes them itself,
// block of elements by block, while the core's cache has the block. Taken by the store, each would
// be another pass over memory that no cache holds, on processors that compute.
//
// Of an update are taken: those of its state, where an extent's parts begin and end where checksums
// do (not with 8-bit slots, whose exponents are too few bytes), and those of the parameter that
// is written. All others are the store's.
class UpdateChecksums {
 public:
  // Of one chunk: bytes in host memory that a block of elements has a part of.
  struct Part {
    ExtentId extent;
    std::size_t offset = 0;  // in the extent, of the first element
    std::span<const std::byte> memory;
    std::size_t element_bytes = 0;
    bool is_read = false;  // from the drive, before the update
  };
  using Parts = std::vector<Part>;
  // Elements that have whole checksums of every part: those are of two bytes or more.
  static constexpr std::int64_t kBlock = kChecksumBytes / 2;

  // Borrows the store, which may be null where the program has no NVMe buffers.
  UpdateChecksums(const Program& program, const ExecutorMemory& memory, const StepModel& model,
                  BlockStore* store);

  // Whether the store leaves the checksums of a read or a write to an update.
  bool takes(const Op& transfer) const;
  // What an update is to compare() and take(); null: nothing.
  const Parts* parts_of(const Op& update) const;

  // Before the update of the elements [begin, end): multiples of kBlock, or the end. Throws
  // CorruptData where they are not what was written. By any thread.
  void compare(const Parts& parts, std::int64_t begin, std::int64_t end) const;
  // After it.
  void take(const Parts& parts, std::int64_t begin, std::int64_t end) const;

 private:
  struct Chunk {
    Parts parts;
    bool has_state = false;
    bool has_parameter = false;
  };
  using Key = std::pair<std::int32_t, std::int32_t>;  // unit, chunk

  const Chunk* chunk_of(const Op& op) const;

  BlockStore* store_;
  std::map<Key, Chunk> chunks_;
};

}  // namespace terrace

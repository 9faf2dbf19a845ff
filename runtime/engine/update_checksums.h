#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/step/lane_executor.h"
#include "runtime/step/step_model.h"

namespace terrace {

// The checksums of the bytes that the host's updates read from and write to NVMe. An update takes
// them itself, one block of elements at a time, while the core's cache has the block. If the store
// took them, each would be another pass over memory that no cache holds, on processors that
// compute.
//
// An update takes the checksums of its state, where an extent's parts begin and end where checksums
// do (not with 8-bit slots, whose exponents are too few bytes), and the checksums of the parameter
// that it writes. The store takes all others.
class UpdateChecksums {
 public:
  // Bytes of one chunk in host memory. Each block of the chunk's elements has a share of them.
  struct Part {
    ExtentId extent;
    std::size_t offset = 0;  // in the extent, of the first element
    std::span<const std::byte> memory;
    std::size_t element_bytes = 0;
    bool is_read = false;  // from the drive, before the update
  };
  using Parts = std::vector<Part>;
  // The number of elements in a block. In every part a block covers whole checksums, because
  // elements have two bytes or more.
  static constexpr std::int64_t kBlock = kChecksumBytes / 2;

  // Borrows the store, which may be null where the program has no NVMe buffers.
  UpdateChecksums(const Program& program, const ExecutorMemory& memory, const StepModel& model,
                  BlockStore* store);

  // Returns whether the store leaves the checksums of a read or a write to an update.
  bool takes(const Op& transfer) const;
  // Returns the parts that an update has to compare() and take(); null if there are none.
  const Parts* parts_of(const Op& update) const;

  // Compares the checksums before the update of the elements [begin, end). Both are multiples of
  // kBlock, except at the chunk's end. Throws CorruptData where the elements are not as they were
  // written. By any thread.
  void compare(const Parts& parts, std::int64_t begin, std::int64_t end) const;
  // Takes the new checksums after that update.
  void take(const Parts& parts, std::int64_t begin, std::int64_t end) const;

 private:
  struct Chunk {
    Parts parts;
    bool has_state = false;
    bool has_parameter = false;
  };
  using Key = std::pair<std::int32_t, std::int32_t>;  // group, chunk

  const Chunk* chunk_of(const Op& op) const;

  BlockStore* store_;
  std::map<Key, Chunk> chunks_;
};

}  // namespace terrace

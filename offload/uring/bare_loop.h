#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "offload/direct_file.h"
#include "offload/uring/ring_mode.h"

namespace terrace {

class Ring;

// The directions of a loop. Mixed: as many reads as writes, each in a separate half of the range.
enum class IoMix : std::uint8_t { kRead, kWrite, kMixed };

struct FileRange {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// Reads and writes a part of a file in order, over and over, and does nothing else. This shows what
// a drive gives to one thread with a ring. Used only by the thread that made it.
class BareLoop {
 public:
  struct Options {
    std::size_t block_bytes = 0;  // a multiple of the file's alignment
    int depth = 1;                // blocks in flight
    RingMode mode;
  };

  // `memory` holds `depth` blocks or more, and all of it is used in turn. `range` has been written,
  // begins where the file's alignment allows, and has two blocks or more. Throws UringRefused.
  BareLoop(const DirectFile& file, const FileRange& range, std::span<std::byte> memory,
           const Options& options);
  ~BareLoop();
  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;

  // Starts blocks until `seconds` seconds of `clock` have passed, waits for them, and returns the
  // bytes transferred. Throws IoError where a block fails or is short.
  std::uint64_t run(IoMix mix, double seconds, const Clock& clock = SystemClock());

 private:
  // The position of the next block of one direction.
  struct Cursor {
    std::uint64_t begin = 0;
    std::uint64_t blocks = 0;
    std::uint64_t next = 0;
  };

  void start(IoMix mix, std::size_t slot);
  void take_ended(IoMix mix, bool restart);
  [[noreturn]] void refuse() const;

  const DirectFile& file_;
  const Options options_;
  const FileRange range_;
  // Blocks of the memory with nothing in flight; the one that has rested longest is first.
  std::deque<std::span<std::byte>> rested_;
  std::vector<std::span<std::byte>> busy_;  // by slot
  std::unique_ptr<Ring> ring_;
  Cursor reads_;
  Cursor writes_;
  bool write_next_ = false;
  std::size_t in_flight_ = 0;
  std::uint64_t carried_ = 0;
  bool failed_ = false;
  std::int64_t failure_ = 0;  // the system's result for a block that failed
};

}  // namespace terrace

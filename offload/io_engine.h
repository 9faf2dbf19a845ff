#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

// The seam to the I/O of one device: aligned pieces of at most a block of its files, carried
// asynchronously. Real: io_uring, and threads with pread/pwrite. Short and interrupted transfers
// are dealt with inside.
namespace terrace {

enum class IoDirection : std::uint8_t { kRead, kWrite };

// How a piece ended: all bytes carried, or an errno (0 for a file that ends too early).
struct PieceResult {
  bool complete = false;
  int error_number = 0;
};

class PieceCompletion {
 public:
  virtual ~PieceCompletion() = default;
  // Called at most once, before piece_done(), on a thread of the engine: the system is asked for
  // the piece now.
  virtual void piece_started() noexcept {}
  // Called exactly once per piece, on a thread of the engine; must be quick. It may submit.
  virtual void piece_done(PieceResult result) noexcept = 0;
};

struct Piece {
  IoDirection direction = IoDirection::kRead;
  std::uint64_t offset = 0;     // in the file, aligned as the file asks
  std::span<std::byte> memory;  // address and size aligned as the file asks
  PieceCompletion* completion = nullptr;
  std::size_t file = 0;  // of the engine's files, in the order it was given them
};

// What an engine is, for StorePath.
struct EngineFacts {
  std::string name;
  bool registered_buffers = false;
  std::string remark;
};

// How much an engine has asked the system for at the same time. A piece starts when both allow it;
// one is always allowed.
struct InFlight {
  int pieces_max = 1;
  std::size_t bytes_max = std::numeric_limits<std::size_t>::max();
};

// So many pieces of each file an engine takes before it has ended one.
inline constexpr std::size_t kQueuedPiecesMax = 1024;

class IoEngine {
 public:
  // Nothing is in flight any more: whoever submits sees to that.
  virtual ~IoEngine() = default;

  // Takes a piece; any thread. It starts when what is in flight allows it, after those of its
  // direction that came before; directions take turns. More than kQueuedPiecesMax of a
  // file that have not ended are the caller's error. Never blocks for the device.
  virtual void submit(const Piece& piece) = 0;
  // Registers memory with the system where that is possible; otherwise facts() says why not. It
  // stays until the engine is destroyed, or an empty span ends all: nothing is in flight then.
  virtual void register_memory(std::span<std::byte> memory) = 0;
  virtual EngineFacts facts() const = 0;
};

}  // namespace terrace

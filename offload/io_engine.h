#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

// The interface to the I/O of one device. It transfers aligned pieces of its files, at most a block
// each, asynchronously. The real engines are io_uring, and threads with pread/pwrite. Engines
// handle short and interrupted transfers themselves.
namespace terrace {

enum class IoDirection : std::uint8_t { kRead, kWrite };

// How a piece ended: all bytes were transferred, or an errno (0 for a file that ends too early).
struct PieceResult {
  bool complete = false;
  int error_number = 0;
};

class PieceCompletion {
 public:
  virtual ~PieceCompletion() = default;
  // Called at most once, before piece_done(), on a thread of the engine, when the system is asked
  // for the piece.
  virtual void piece_started() noexcept {}
  // Called exactly once per piece, on a thread of the engine; must be quick. It may submit.
  virtual void piece_done(PieceResult result) noexcept = 0;
};

struct Piece {
  IoDirection direction = IoDirection::kRead;
  std::uint64_t offset = 0;     // in the file, aligned as the file asks
  std::span<std::byte> memory;  // address and size aligned as the file asks
  PieceCompletion* completion = nullptr;
  std::size_t file = 0;  // index among the engine's files, in the order they were given
};

// Facts about an engine, for StorePath.
struct EngineFacts {
  std::string name;
  bool registered_buffers = false;
  std::string remark;
};

// The limits on what an engine has asked the system for at the same time. A piece starts when both
// allow it; one piece is always allowed.
struct InFlight {
  int pieces_max = 1;
  std::size_t bytes_max = std::numeric_limits<std::size_t>::max();
};

// The number of pieces of each file that an engine accepts before it has ended one.
inline constexpr std::size_t kQueuedPiecesMax = 1024;

class IoEngine {
 public:
  // Nothing may be in flight any more: the code that submits ensures that.
  virtual ~IoEngine() = default;

  // Takes a piece; any thread. The piece starts when the limits allow it, after the earlier pieces
  // of its direction; directions take turns. It is the caller's error if more than kQueuedPiecesMax
  // pieces of a file have not ended. Never blocks for the device.
  virtual void submit(const Piece& piece) = 0;
  // Registers memory with the system where that is possible; otherwise facts() says why not. The
  // memory stays registered until the engine is destroyed, or an empty span ends all registrations.
  // Nothing may be in flight then.
  virtual void register_memory(std::span<std::byte> memory) = 0;
  virtual EngineFacts facts() const = 0;
};

}  // namespace terrace

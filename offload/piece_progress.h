#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/io_engine.h"

// Decides what a transfer's result means for its piece. A result may be complete, short,
// interrupted or failed. Every engine asks here; this is decided nowhere else.
namespace terrace {

class PieceProgress {
 public:
  enum class Next : std::uint8_t { kComplete, kAgain, kFailed };

  // How many times in a row a transfer may be interrupted, or transfer nothing, before the piece
  // fails.
  static constexpr int kMaxFruitless = 100;

  PieceProgress() = default;
  PieceProgress(const Piece& piece, std::size_t alignment);

  // Takes the system's result for a transfer of rest(): bytes, or a negative errno. On kAgain the
  // caller transfers the (new) rest(). A short result is rounded down to the alignment, because a
  // direct transfer cannot start in between.
  Next advance(std::int64_t result);

  std::span<std::byte> rest() const { return piece_.memory.subspan(carried_); }
  std::uint64_t rest_offset() const { return piece_.offset + carried_; }
  const Piece& piece() const { return piece_; }
  // Valid after kComplete or kFailed.
  PieceResult result() const { return result_; }

 private:
  Next fruitless(int error_number);

  Piece piece_;
  std::size_t alignment_ = 1;
  std::size_t carried_ = 0;
  int fruitless_ = 0;
  PieceResult result_;
};

}  // namespace terrace

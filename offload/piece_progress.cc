#include "offload/piece_progress.h"

#include <cerrno>

#include "base/check.h"

namespace terrace {

PieceProgress::PieceProgress(const Piece& piece, std::size_t alignment)
    : piece_(piece), alignment_(alignment) {}

PieceProgress::Next PieceProgress::advance(std::int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return fruitless(static_cast<int>(-result));
  if (result <= 0) {
    result_ = {.complete = false, .error_number = static_cast<int>(-result)};
    return Next::kFailed;
  }
  const auto bytes = static_cast<std::size_t>(result);
  TERRACE_CHECK_LE(bytes, rest().size());
  if (bytes == rest().size()) {
    carried_ = piece_.memory.size();
    result_ = {.complete = true, .error_number = 0};
    return Next::kComplete;
  }
  const std::size_t whole = bytes / alignment_ * alignment_;
  if (whole == 0) return fruitless(0);
  carried_ += whole;
  fruitless_ = 0;
  return Next::kAgain;
}

PieceProgress::Next PieceProgress::fruitless(int error_number) {
  if (++fruitless_ < kMaxFruitless) return Next::kAgain;
  result_ = {.complete = false, .error_number = error_number};
  return Next::kFailed;
}

}  // namespace terrace

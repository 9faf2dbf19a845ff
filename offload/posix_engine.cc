#include "offload/posix_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/address_space.h"
#include "base/check.h"
#include "base/error.h"

namespace terrace {

PosixEngine::PosixEngine(std::vector<RawFile*> files, const InFlight& limit, std::string name)
    : files_(std::move(files)),
      bytes_max_(limit.bytes_max),
      name_(std::move(name)),
      queue_(kQueuedPiecesMax * files_.size()) {
  const int threads = std::min(limit.pieces_max, kMaxThreads);
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error& error) {
    stop();
    throw EnvironmentError(
        fmt::format("cannot start a thread of the engine '{}': {}", name_, error.what()),
        remedy_for_threads());
  }
}

PosixEngine::~PosixEngine() { stop(); }

void PosixEngine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_came_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PosixEngine::submit(const Piece& piece) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push(piece);
  }
  work_came_.notify_one();
}

void PosixEngine::register_memory(std::span<std::byte> /*memory*/) {}

EngineFacts PosixEngine::facts() const {
  return {.name = name_, .registered_buffers = false, .remark = ""};
}

bool PosixEngine::may_start() const {
  if (queue_.empty()) return false;
  return bytes_in_flight_ == 0 || bytes_in_flight_ + queue_.next().memory.size() <= bytes_max_;
}

void PosixEngine::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_came_.wait(lock, [this] { return stop_ || may_start(); });
    if (!may_start()) return;
    const Piece piece = queue_.pop();
    bytes_in_flight_ += piece.memory.size();
    // The end of a piece may make room for several: each thread that starts one wakes the next.
    if (may_start()) work_came_.notify_one();
    lock.unlock();
    carry(piece);
    lock.lock();
    bytes_in_flight_ -= piece.memory.size();
  }
}

void PosixEngine::carry(const Piece& piece) {
  RawFile& file = *files_.at(piece.file);
  piece.completion->piece_started();
  PieceProgress progress(piece, file.alignment());
  PieceProgress::Next next = PieceProgress::Next::kAgain;
  while (next == PieceProgress::Next::kAgain) {
    const std::span<std::byte> rest = progress.rest();
    const std::int64_t result = piece.direction == IoDirection::kRead
                                    ? file.read_at(rest, progress.rest_offset())
                                    : file.write_at(rest, progress.rest_offset());
    next = progress.advance(result);
  }
  piece.completion->piece_done(progress.result());
}

}  // namespace terrace

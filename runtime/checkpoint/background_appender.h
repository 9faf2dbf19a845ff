#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "runtime/checkpoint/safetensors.h"

namespace terrace {

// Appends to a safetensors file on a thread of its own, so that its caller reads and converts the
// next bytes while these are written. Where no thread can be started (a limit on threads or
// addresses), append() writes on its caller's thread. Used by one thread.
class BackgroundAppender {
 public:
  // The largest number of bytes that wait to be written.
  static constexpr std::size_t kWaitingBytesMax = std::size_t{16} << 20;

  // Borrows the file, which nobody else uses until finish() or the end of this.
  explicit BackgroundAppender(SafetensorsWriter& file);
  // Drops the bytes that are not yet written.
  ~BackgroundAppender();
  BackgroundAppender(const BackgroundAppender&) = delete;
  BackgroundAppender& operator=(const BackgroundAppender&) = delete;

  // Copies the bytes, and waits for room where too many wait. Throws what an earlier write threw.
  void append(std::span<const std::byte> bytes);
  // Waits until all is written. Throws what an earlier write threw.
  void finish();

 private:
  using Bytes = std::vector<std::byte>;

  void append_piece(std::span<const std::byte> piece);
  void run();
  void rethrow_failure() const;  // mutex_ is held

  SafetensorsWriter& file_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Bytes> waiting_;   // guarded by mutex_, as is all below
  std::vector<Bytes> written_;  // buffers to be used again
  bool is_writing_ = false;
  bool stops_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace terrace

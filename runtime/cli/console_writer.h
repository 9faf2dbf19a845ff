#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>

#include "base/bytes.h"
#include "runtime/cli/console_log.h"

namespace terrace {

// Writes text to a descriptor on a thread of its own, in order, so that nobody waits for who reads
// it: a terminal that was paused, a pager, a log driver. What is more than fits the queue is
// dropped, and how many lines that were is written when the reader goes on.
class ConsoleWriter {
 public:
  struct Limits {
    std::size_t queued_bytes = 4 * kMiB;
    std::chrono::milliseconds grace = std::chrono::seconds(3);
  };

  // Borrows the descriptor, which stays open until the process ends.
  explicit ConsoleWriter(int descriptor) : ConsoleWriter(descriptor, Limits()) {}
  ConsoleWriter(int descriptor, const Limits& limits);
  // Waits until everything is written, and gives up when nothing was taken for the time of grace.
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  // Any thread; does not wait. What cannot be written, as to a console that is gone, is not said.
  void write(std::string_view text);

 private:
  struct Queue;

  const Limits limits_;
  const std::shared_ptr<Queue> queue_;  // also the thread's, which may outlive this
  std::thread thread_;
};

// The standard streams of a command that goes on whoever reads them: output as a stream whose
// flushes are handed on as a whole, errors as a sink of texts. What goes to one file stays in
// order.
class ConsoleStreams {
 public:
  // Throws std::bad_alloc.
  ConsoleStreams();

  std::FILE* output() const { return output_.get(); }
  ErrorSink error_sink();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  ConsoleWriter out_;
  std::unique_ptr<ConsoleWriter> errors_;  // null where standard error is standard output
  std::unique_ptr<std::FILE, Close> output_;
};

}  // namespace terrace

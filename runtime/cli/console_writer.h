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

// Writes text to a descriptor on a thread of its own, in order, so that the callers never wait for
// the reader: a paused terminal, a pager, a log driver. Text that does not fit into the queue is
// dropped, and the number of dropped lines is written when the reader goes on.
class ConsoleWriter {
 public:
  struct Limits {
    std::size_t queued_bytes = 4 * kMiB;
    std::chrono::milliseconds grace = std::chrono::seconds(3);
  };

  // Borrows the descriptor, which stays open until the process ends.
  explicit ConsoleWriter(int descriptor) : ConsoleWriter(descriptor, Limits()) {}
  ConsoleWriter(int descriptor, const Limits& limits);
  // Waits until everything is written, but gives up when the reader takes nothing for the grace
  // time.
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  // Can be called on any thread; does not wait. Text that cannot be written, for example because
  // the console is gone, is dropped without a report.
  void write(std::string_view text);

 private:
  struct Queue;

  const Limits limits_;
  const std::shared_ptr<Queue> queue_;  // also the thread's, which may outlive this
  std::thread thread_;
};

// The standard streams of a command that goes on whether or not anybody reads them: output as a
// stream whose flushes are passed on whole, errors as a sink of texts. If both go to the same file,
// their order is kept.
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

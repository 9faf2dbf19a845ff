#include "runtime/cli/console_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <utility>

namespace terrace {
namespace {

// Returns whether two descriptors lead to the same file, pipe or terminal.
bool is_same_target(int descriptor, int other) {
  struct stat one = {};
  struct stat two = {};
  return ::fstat(descriptor, &one) == 0 && ::fstat(other, &two) == 0 && one.st_dev == two.st_dev &&
         one.st_ino == two.st_ino;
}

}  // namespace

struct ConsoleWriter::Queue {
  explicit Queue(int to) : descriptor(to) {}

  void run();
  bool write_all(std::string_view text);
  void tell_progress();

  const int descriptor;
  std::mutex mutex;
  std::condition_variable came;
  std::condition_variable changed;
  std::string text;                // guarded by mutex, as all below
  std::int64_t dropped_lines = 0;  // since the thread took `text` last
  bool drops = false;              // true until the thread takes `text` again
  bool stops = false;
  bool has_ended = false;
  std::uint64_t progress = 0;  // pieces written
};

void ConsoleWriter::Queue::tell_progress() {
  const std::lock_guard lock(mutex);
  ++progress;
  changed.notify_all();
}

// Returns false if nothing can be written any more. The file is shared, so somebody else may have
// made it non-blocking.
bool ConsoleWriter::Queue::write_all(std::string_view rest) {
  constexpr std::size_t kPieceBytes = 4096;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor, rest.data(), std::min(kPieceBytes, rest.size()));
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
      tell_progress();
    } else if (errno == EAGAIN) {
      pollfd ready = {.fd = descriptor, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void ConsoleWriter::Queue::run() {
  bool is_gone = false;
  std::unique_lock lock(mutex);
  for (;;) {
    came.wait(lock, [this] { return stops || drops || !text.empty(); });
    if (!drops && text.empty()) break;
    std::string taken = std::exchange(text, {});
    const std::int64_t dropped = std::exchange(dropped_lines, 0);
    drops = false;
    lock.unlock();
    if (dropped > 0) {
      taken +=
          fmt::format("terrace: {} lines were dropped here because nobody read them\n", dropped);
    }
    if (!is_gone) is_gone = !write_all(taken);
    lock.lock();
  }
  has_ended = true;
  changed.notify_all();
}

ConsoleWriter::ConsoleWriter(int descriptor, const Limits& limits)
    : limits_(limits), queue_(std::make_shared<Queue>(descriptor)) {
  try {
    thread_ = std::thread([queue = queue_] { queue->run(); });
  } catch (const std::system_error&) {
    thread_ = std::thread();  // write() then waits for the reader
  }
}

ConsoleWriter::~ConsoleWriter() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(queue_->mutex);
  queue_->stops = true;
  queue_->came.notify_one();
  bool goes_on = true;
  while (goes_on && !queue_->has_ended) {
    const std::uint64_t seen = queue_->progress;
    goes_on = queue_->changed.wait_for(
        lock, limits_.grace, [&] { return queue_->has_ended || queue_->progress != seen; });
  }
  lock.unlock();
  if (goes_on) {
    thread_.join();
  } else {
    thread_.detach();  // the thread ends with the process
  }
}

void ConsoleWriter::write(std::string_view text) {
  if (!thread_.joinable()) {
    queue_->write_all(text);
    return;
  }
  const std::lock_guard lock(queue_->mutex);
  queue_->drops = queue_->drops || queue_->text.size() + text.size() > limits_.queued_bytes;
  if (queue_->drops) {
    queue_->dropped_lines += std::ranges::count(text, '\n');
  } else {
    queue_->text += text;
  }
  queue_->came.notify_one();
}

ConsoleStreams::ConsoleStreams() : out_(STDOUT_FILENO) {
  if (!is_same_target(STDOUT_FILENO, STDERR_FILENO)) {
    errors_ = std::make_unique<ConsoleWriter>(STDERR_FILENO);
  }
  constexpr cookie_io_functions_t kCalls = {
      .read = nullptr,
      .write = [](void* writer, const char* text, std::size_t size) -> ssize_t {
        static_cast<ConsoleWriter*>(writer)->write({text, size});
        return static_cast<ssize_t>(size);
      },
      .seek = nullptr,
      .close = nullptr};
  output_.reset(::fopencookie(&out_, "w", kCalls));
  if (output_ == nullptr) throw std::bad_alloc();
  std::setvbuf(output_.get(), nullptr, _IOFBF, 64 * kKiB);
}

ErrorSink ConsoleStreams::error_sink() {
  return [&writer = errors_ == nullptr ? out_ : *errors_](std::string_view text) {
    writer.write(text);
  };
}

}  // namespace terrace

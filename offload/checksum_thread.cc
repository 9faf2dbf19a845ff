#include "offload/checksum_thread.h"

#include <fmt/format.h>

#include <system_error>

#include "base/address_space.h"
#include "base/check.h"
#include "base/error.h"

namespace terrace {

ChecksumThread::ChecksumThread(std::size_t capacity) {
  reads_.places.resize(capacity);
  writes_.places.resize(capacity);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw EnvironmentError(
        fmt::format("cannot start the thread that computes checksums: {}", error.what()),
        remedy_for_threads());
  }
}

ChecksumThread::~ChecksumThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  came_.notify_one();
  thread_.join();
}

void ChecksumThread::push(Line& line, ChecksumJob& job) noexcept {
  const std::lock_guard lock(mutex_);
  TERRACE_CHECK_LT(line.count, line.places.size());
  line.places[(line.first + line.count) % line.places.size()] = &job;
  ++line.count;
  if (!idle_) return;
  idle_ = false;
  // Notifies with the lock held: without it, the job may already have ended, and the thread with
  // it.
  came_.notify_one();
}

// Returns null where no job waits.
ChecksumJob* ChecksumThread::pop() {
  Line& line = reads_.count != 0 ? reads_ : writes_;
  if (line.count == 0) return nullptr;
  ChecksumJob* job = line.places[line.first];
  line.first = (line.first + 1) % line.places.size();
  --line.count;
  return job;
}

void ChecksumThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ChecksumJob* job = pop();
    if (job == nullptr) {
      if (stop_) return;
      idle_ = true;
      came_.wait(lock, [this] { return stop_ || !idle_; });
      continue;
    }
    lock.unlock();
    job->take_checksum();
    lock.lock();
  }
}

}  // namespace terrace

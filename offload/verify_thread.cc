#include "offload/verify_thread.h"

#include <fmt/format.h>

#include <system_error>

#include "base/check.h"
#include "base/error.h"

namespace terrace {

VerifyThread::VerifyThread(std::size_t capacity) : capacity_(capacity) {
  waiting_.reserve(capacity);
  taken_.reserve(capacity);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw EnvironmentError(
        fmt::format("the thread that verifies checksums does not start: {}", error.what()),
        "raise the limit on threads (ulimit -u)");
  }
}

VerifyThread::~VerifyThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  came_.notify_one();
  thread_.join();
}

void VerifyThread::push(Verification& verification) noexcept {
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    TERRACE_CHECK_LT(waiting_.size(), capacity_);
    waiting_.push_back(&verification);
    wakes = idle_;
    idle_ = false;
  }
  if (wakes) came_.notify_one();
}

void VerifyThread::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      idle_ = waiting_.empty();
      came_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      idle_ = false;
      taken_.swap(waiting_);
    }
    for (Verification* verification : taken_) verification->verify();
    taken_.clear();
  }
}

}  // namespace terrace

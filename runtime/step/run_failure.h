#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>

namespace terrace {

// The first failure of any op, and the earliest run that failed. Written by any thread.
class RunFailure {
 public:
  // Notes that a run failed. `ranks_go_on` is asked once, with the first failure: it says whether
  // ops between ranks go on all the same.
  template <typename RanksGoOn>
  void note(std::int64_t run, const std::exception_ptr& error, RanksGoOn&& ranks_go_on) noexcept {
    const std::lock_guard lock(mutex_);
    if (!error_) {
      error_ = error;
      ranks_go_on_.store(ranks_go_on(error), std::memory_order_relaxed);
    }
    if (run < first_run_.load()) first_run_.store(run, std::memory_order_release);
  }
  // Returns whether this run or an earlier one has failed.
  bool reaches(std::int64_t run) const { return run >= first_run_.load(std::memory_order_acquire); }
  bool ranks_go_on() const { return ranks_go_on_.load(std::memory_order_relaxed); }
  // Rethrows the first failure, if this run or an earlier one has failed.
  void rethrow_of(std::int64_t run) const {
    const std::lock_guard lock(mutex_);
    if (run >= first_run_.load()) std::rethrow_exception(error_);
  }
  // Rethrows the first failure of any run.
  void rethrow() const {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  std::atomic<std::int64_t> first_run_{kNone};
  std::atomic<bool> ranks_go_on_{false};  // set before first_run_
  mutable std::mutex mutex_;
  std::exception_ptr error_;  // guarded by mutex_
};

}  // namespace terrace

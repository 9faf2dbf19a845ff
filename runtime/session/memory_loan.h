#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "memory/host/host_memory.h"

namespace terrace {

// How many loans of a session's memory are out. Any thread may ask and change it; what was written
// through a loan is there for whoever sees that it ended.
class LoanCount {
 public:
  bool is_zero() const { return count_->load(std::memory_order_acquire) == 0; }

 private:
  friend class MemoryLoan;

  std::shared_ptr<std::atomic<std::int64_t>> count_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

// A dense tensor in a session's memory that somebody else holds: the memory stays as long as this
// does, also beyond the session. It may end on any thread.
class MemoryLoan {
 public:
  struct Elements {
    std::byte* data = nullptr;
    DType dtype = DType::kF32;
    std::vector<std::int64_t> shape;
    bool is_read_only = false;
  };

  MemoryLoan(Elements elements, std::shared_ptr<const HostMemory> memory, const LoanCount& loans)
      : elements_(std::move(elements)), memory_(std::move(memory)), count_(loans.count_) {
    count_->fetch_add(1, std::memory_order_relaxed);
  }
  ~MemoryLoan() { count_->fetch_sub(1, std::memory_order_release); }
  MemoryLoan(const MemoryLoan&) = delete;
  MemoryLoan& operator=(const MemoryLoan&) = delete;

  const Elements& elements() const { return elements_; }

 private:
  const Elements elements_;
  const std::shared_ptr<const HostMemory> memory_;
  const std::shared_ptr<std::atomic<std::int64_t>> count_;
};

}  // namespace terrace

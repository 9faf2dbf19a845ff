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

// The number of loans of a session's memory that are out. Any thread may read and change it. A
// thread that sees that a loan has ended also sees everything that was written through it.
class LoanCount {
 public:
  bool is_zero() const { return count_->load(std::memory_order_acquire) == 0; }

 private:
  friend class MemoryLoan;

  std::shared_ptr<std::atomic<std::int64_t>> count_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
};

// A dense tensor in a session's memory that somebody else holds. The memory stays as long as this
// object does, also after the session has ended. It may be destroyed on any thread.
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

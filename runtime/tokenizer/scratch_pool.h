#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace terrace {

// A pool of memory that calls use one after the other. It has as many objects as there were calls
// at once. Thread-safe.
template <typename T>
class ScratchPool {
 public:
  // An object of the pool, given back at the end.
  class Lease {
   public:
    Lease(ScratchPool& pool, std::unique_ptr<T> object) : pool_(pool), object_(std::move(object)) {}
    ~Lease() { pool_.give_back(std::move(object_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    T& operator*() const { return *object_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<T> object_;
  };

  Lease take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<T> object = std::move(free_.back());
        free_.pop_back();
        return Lease(*this, std::move(object));
      }
    }
    return Lease(*this, std::make_unique<T>());
  }

 private:
  void give_back(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(object));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace terrace

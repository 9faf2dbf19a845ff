#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace terrace {

// Something that takes its time and must not be done on a thread that keeps a drive busy.
class Verification {
 public:
  virtual ~Verification() = default;
  // Called once for each time it was handed in, on the thread.
  virtual void verify() noexcept = 0;
};

// A thread that blocks which have been read are verified on, in the order in which they come.
class VerifyThread {
 public:
  // At most `capacity` wait at a time. Throws EnvironmentError where the thread does not start.
  explicit VerifyThread(std::size_t capacity);
  // After everything that was handed in has been verified.
  ~VerifyThread();
  VerifyThread(const VerifyThread&) = delete;
  VerifyThread& operator=(const VerifyThread&) = delete;

  // Any thread; allocates nothing. `verification` lives until it has been called.
  void push(Verification& verification) noexcept;

 private:
  void run();

  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Verification*> waiting_;  // guarded by mutex_
  bool idle_ = false;                   // guarded by mutex_: the thread waits to be told
  bool stop_ = false;                   // guarded by mutex_
  std::vector<Verification*> taken_;    // of the thread
  std::thread thread_;
};

}  // namespace terrace

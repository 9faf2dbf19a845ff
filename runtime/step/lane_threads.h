#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace terrace {

// A set of threads that end together. One thread uses the set.
class LaneThreads {
 public:
  LaneThreads() = default;
  ~LaneThreads() { join(); }
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  // Starts a thread that does `work`. Throws EnvironmentError, naming the thread, if the system
  // starts no more threads.
  void start(const std::string& name, std::function<void()> work);
  // Waits until all threads have returned. The caller must have told them to return.
  void join();

 private:
  std::vector<std::thread> threads_;
};

}  // namespace terrace

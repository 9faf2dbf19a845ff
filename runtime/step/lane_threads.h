#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace terrace {

// Threads that end together. Used by one thread.
class LaneThreads {
 public:
  LaneThreads() = default;
  ~LaneThreads() { join(); }
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  // Throws EnvironmentError, naming the thread, where the system starts no more.
  void start(const std::string& name, std::function<void()> work);
  // Waits until all have returned: the caller has told them to.
  void join();

 private:
  std::vector<std::thread> threads_;
};

}  // namespace terrace

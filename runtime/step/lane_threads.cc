#include "runtime/step/lane_threads.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "base/address_space.h"
#include "base/error.h"

namespace terrace {

void LaneThreads::start(const std::string& name, std::function<void()> work) {
  try {
    threads_.emplace_back(std::move(work));
  } catch (const std::system_error& error) {
    throw EnvironmentError(fmt::format("cannot start the thread of {}: {}", name, error.what()),
                           remedy_for_threads());
  }
}

void LaneThreads::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace terrace

#pragma once

#include <chrono>

namespace terrace {

// Returns the seconds that `work` takes by the clock on the wall.
template <typename Work>
double seconds_of(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  return passed.count();
}

}  // namespace terrace

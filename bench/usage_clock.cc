#include "bench/usage_clock.h"

#include <ctime>

#include "base/clock.h"

namespace terrace {
namespace {

double process_seconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

UsageClock::UsageClock()
    : wall_begin_ns_(SystemClock().now_ns()), cpu_begin_s_(process_seconds()) {}

double UsageClock::wall_seconds() const {
  return static_cast<double>(SystemClock().now_ns() - wall_begin_ns_) * 1e-9;
}

double UsageClock::cpu_seconds() const { return process_seconds() - cpu_begin_s_; }

}  // namespace terrace

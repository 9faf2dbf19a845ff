#include "tests/sim/virtual_time.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace terrace {

void VirtualTime::run_until(FunctionRef<bool()> done) {
  while (!done()) {
    std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();
    std::size_t next = actors_.size();
    for (std::size_t i = 0; i < actors_.size(); ++i) {
      const std::optional<std::int64_t> due = actors_[i]->due_ns();
      if (!due.has_value() || *due >= first_ns) continue;
      first_ns = *due;
      next = i;
    }
    if (next == actors_.size()) throw Hang("nothing can happen any more, and a run is unfinished");
    if (++acts_ > cut_at_) throw PowerCut();
    now_ns_ = std::max(now_ns_, first_ns);
    const std::array<std::int64_t, 2> entry = {now_ns_, static_cast<std::int64_t>(next)};
    history_.add(std::as_bytes(std::span(entry)));
    actors_[next]->act();
  }
}

bool VirtualTime::draw_chance(double chance) {
  return std::ldexp(static_cast<double>(draw() >> 11), -53) < chance;
}

std::int64_t VirtualTime::draw_latency(std::int64_t mean_ns) {
  const double uniform = std::ldexp(static_cast<double>(draw() >> 11), -53);
  const double usual = -std::log(1.0 - uniform) * static_cast<double>(mean_ns);
  const double spike = draw_chance(0.02) ? 50.0 : 1.0;
  return 1 + static_cast<std::int64_t>(usual * spike);
}

}  // namespace terrace

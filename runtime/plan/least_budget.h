#pragma once

#include <cstddef>

#include "base/function_ref.h"

namespace terrace {

// Returns a budget that is less than `bytes` by more than the error of least_budget(): by 3 %, or
// by 64 KiB where that is more.
std::size_t clearly_less(std::size_t bytes);

// Rounds up to the next budget that least_budget() can return.
std::size_t round_up_budget(std::size_t bytes);

// Returns the least budget that `accepts` takes, up to 0.4 % or 4 KiB too high. `accepts` takes the
// budget returned, but neither clearly_less() of it nor some smaller ones. `enough` is rounded by
// round_up_budget(), and `accepts` takes it. A planner may take one budget and refuse a larger one,
// so a smaller budget that was not tried may still be taken.
std::size_t least_budget(std::size_t enough, FunctionRef<bool(std::size_t)> accepts);

}  // namespace terrace

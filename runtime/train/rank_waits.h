#pragma once

#include <span>
#include <string>

namespace terrace {

// Says in one line without a full stop how ranks have waited for each other: names the rank that
// the others wait for most if they wait for it much longer than for any other, else says how long
// ranks wait on average. Returns nothing if the waits are short. `waited_for_s`: for each rank, how
// long all others together have waited for it in `seconds`.
std::string describe_rank_waits(std::span<const double> waited_for_s, double seconds);

}  // namespace terrace

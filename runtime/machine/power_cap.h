#pragma once

#include <string>

#include "runtime/machine/machine.h"

// A limit on the power of each node, and what it does to the rate of products.
namespace terrace {

// Caps below this share of a node's full power are refused. Leakage, memory and fans take power
// that does not depend on the clock. The model below leaves it out, and under a deep cap it is the
// larger part.
inline constexpr double kLeastCapShare = 0.5;

// A cap, and the machine under it.
struct PowerCap {
  double watts = 0;        // of a node
  double full_watts = 0;   // of a node without the cap: node_watts
  double clock_share = 1;  // the clock under the cap, as a share of the clock at full power
};

// Returns what a cap does. The power of a CMOS circuit goes with the square of its voltage times
// its clock (T. Mudge, Power: a first-class architectural design constraint, IEEE Computer 34(4),
// 2001), and the voltage falls with the clock, so the clock goes with the cube root of the power.
// Throws ConfigError where node_watts is not known, and for a cap below kLeastCapShare of it.
PowerCap power_cap_on(const Machine& machine, double watts);

// Returns the machine under the cap: products reach clock_share of the rate that they reach without
// it, and a node takes at most `watts`. Links, memory and drives keep their rates.
Machine under_power_cap(const Machine& machine, const PowerCap& cap);

// Returns a sentence on the cap and on the assumption about it.
std::string describe_power_cap(const PowerCap& cap);

}  // namespace terrace

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/state_format.h"

namespace terrace {

// A form of the optimizer state that benchmarks update.
struct UpdateForm {
  std::string name;  // of the result
  StateFormat state;
};

std::vector<UpdateForm> update_forms();

// Bytes that an update of so many bf16 parameters with fp32 gradients reads and writes.
double update_traffic_bytes(const StateFormat& format, std::int64_t elements);

}  // namespace terrace

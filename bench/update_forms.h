#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/state_format.h"
#include "optim/update_rule.h"

namespace terrace {

// A rule and a form of its state that benchmarks update.
struct UpdateForm {
  std::string name;  // of the result
  const UpdateRule* rule = nullptr;
  StateFormat state;
};

// Four for each rule.
std::vector<UpdateForm> update_forms();

// Bytes that an update of so many bf16 parameters with fp32 gradients reads and writes.
double update_traffic_bytes(const StateFormat& format, std::int64_t elements);

}  // namespace terrace

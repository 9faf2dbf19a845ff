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

// Returns four forms for each rule.
std::vector<UpdateForm> update_forms();

// Returns the bytes that an update of `elements` bf16 parameters with fp32 gradients reads and
// writes.
double update_traffic_bytes(const StateFormat& format, std::int64_t elements);

}  // namespace terrace

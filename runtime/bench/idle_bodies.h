#pragma once

#include "runtime/step/lane_executor.h"

namespace terrace {

// Ops whose work has been done already.
class IdleBodies final : public OpBodies {
 public:
  void run(const Op& /*op*/, const RunInput& /*input*/, NativeStream /*stream*/) override {}
};

}  // namespace terrace

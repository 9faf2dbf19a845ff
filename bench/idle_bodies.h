#pragma once

#include "runtime/step/lane_executor.h"

namespace terrace {

// Bodies of ops whose work has been done already.
class IdleBodies final : public OpBodies {
 public:
  // `working`: the bodies of an equal program that does work; they outlive this. The checksums that
  // they take themselves are not taken by the store here either.
  explicit IdleBodies(const OpBodies* working = nullptr) : working_(working) {}

  void run(const Op& /*op*/, const RunInput& /*input*/, NativeStream /*stream*/) override {}
  bool takes_checksums(const Op& transfer) const override {
    return working_ != nullptr && working_->takes_checksums(transfer);
  }

 private:
  const OpBodies* const working_;
};

}  // namespace terrace

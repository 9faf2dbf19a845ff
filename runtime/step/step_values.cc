#include "runtime/step/step_values.h"

namespace terrace {

bool passes_values_on(const Op& op) {
  switch (op.kind) {
    case OpKind::kUpload:
    case OpKind::kDownload:
    case OpKind::kRead:
    case OpKind::kWrite:
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kAllGather:
    case OpKind::kRoundGradient:
      return true;
    default:
      return false;
  }
}

ValueAge demanded_age(const Op& op, Role role) {
  if (passes_values_on(op)) return ValueAge::kAny;
  switch (role) {
    case Role::kParameters:
    case Role::kTiedParameters:
    case Role::kState:
    case Role::kLossScale:
      return ValueAge::kStepBefore;
    case Role::kConstants:
    case Role::kWorkspace:
      return ValueAge::kAny;
    default:
      return ValueAge::kOwnStep;
  }
}

}  // namespace terrace

#include "runtime/step/left_out_ops.h"

namespace terrace {

bool is_left_out(const Op& op, std::int32_t micro_batches) {
  if (op.micro_batch < micro_batches) return false;
  switch (op.kind) {
    case OpKind::kForward:
    case OpKind::kRecompute:
    case OpKind::kBackward:
    case OpKind::kAccumulate:
    case OpKind::kSend:
    case OpKind::kReceive:
      return true;
    case OpKind::kUpload:
    case OpKind::kDownload:
    case OpKind::kRead:
    case OpKind::kWrite:
      return op.account == Account::kActivations;
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kAllGather:
      return op.lane == Lane::kTensor && op.account == Account::kActivations;
    default:
      return false;
  }
}

}  // namespace terrace

#include "runtime/step/coded_exchange.h"

#include <utility>

#include "kernels/wire_ops.h"
#include "runtime/step/rank_exchange.h"

namespace terrace {
namespace {

static_assert(kBlockElements % kWireBlock == 0,
              "a rank's part of a chunk has whole blocks of codes");

Op code_op(OpKind kind, Account account, std::int32_t chunk, const Range& source,
           const Range& target) {
  Op op = data_op(kind, account, chunk, source, target);
  op.lane = Lane::kCode;
  op.cost.bytes = static_cast<double>(source.size_bytes + target.size_bytes);
  return op;
}

// Returns a new buffer beside `range` for the codes of all ranks' parts of a chunk.
Range codes_beside(Draft& draft, const StepModel& model, const Range& range, std::string name,
                   std::size_t part_bytes) {
  const std::size_t bytes = part_bytes * static_cast<std::size_t>(model.zero.ranks);
  const BufferId codes = draft.add_buffer(std::move(name), bytes, draft.tier_of(range),
                                          Account::kStaging, Life::kTransient);
  return {codes, 0, bytes};
}

}  // namespace

bool codes_on_device(const Program& program, const Op& op) {
  if (op.lane != Lane::kCode) return false;
  const auto written = static_cast<std::size_t>(op.writes.front().buffer);
  return program.buffers.at(written).tier == Tier::kDevice;
}

Range reduce_coded(Mover& mover, Draft& draft, const StepModel& model, const CodedSum& sum) {
  const auto elements = static_cast<std::int64_t>(sum.whole.size_bytes / sizeof(float));
  const std::size_t part = coded_bytes(model.wire.gradients, elements / model.zero.ranks);
  const Range sent = codes_beside(draft, model, sum.whole,
                                  draft.name("codes of {}.{}", sum.whole.buffer, sum.chunk), part);
  const Range received = codes_beside(
      draft, model, sum.whole, draft.name("codes for {}.{}", sum.whole.buffer, sum.chunk), part);
  Op encode = code_op(OpKind::kEncode, Account::kGradients, sum.chunk, sum.whole, sent);
  if (sum.errors.buffer != kNoBuffer) {
    encode.reads.push_back(as(Role::kErrors, sum.errors));
    encode.writes.push_back(as(Role::kErrors, sum.errors));
    encode.cost.bytes += 2 * static_cast<double>(sum.errors.size_bytes);
  }
  mover.add(std::move(encode));
  Op exchange = data_op(OpKind::kAllToAll, Account::kGradients, sum.chunk, sent, received);
  exchange.cost.bytes = sent_bytes(model.zero.ranks, received.size_bytes);
  mover.add(std::move(exchange));
  mover.add(code_op(OpKind::kDecodeSum, Account::kGradients, sum.chunk, received, sum.target));
  return sum.target;
}

void gather_coded(Mover& mover, Draft& draft, const StepModel& model, const CodedGather& gather) {
  const auto elements =
      static_cast<std::int64_t>(gather.own.size_bytes / model.parameter_bytes(gather.group));
  const std::size_t part = coded_bytes(model.wire.parameters, elements);
  const Range codes =
      codes_beside(draft, model, gather.whole,
                   draft.name("codes of {}.{}", gather.whole.buffer, gather.chunk), part);
  const Range own_codes{codes.buffer, part * static_cast<std::size_t>(model.zero.rank), part};
  mover.add(code_op(OpKind::kEncode, Account::kParameters, gather.chunk, gather.own, own_codes));
  Op exchange = data_op(OpKind::kAllGather, Account::kParameters, gather.chunk, own_codes, codes);
  exchange.cost.bytes = sent_bytes(model.zero.ranks, codes.size_bytes);
  mover.add(std::move(exchange));
  mover.add(code_op(OpKind::kDecode, Account::kParameters, gather.chunk, codes, gather.whole));
}

}  // namespace terrace

#include "runtime/step/lowering.h"

// The ZeRO pass: the exchange between data-parallel ranks. Every rank compiles the same ops in the
// same order; only the part of a chunk that is the rank's own differs.
namespace terrace {
namespace {

// Returns the bytes that a rank sends in a gather or a reduce-scatter of a whole of this size.
double sent_bytes(const ZeroSharding& zero, std::size_t whole_bytes) {
  return static_cast<double>(whole_bytes) * (zero.ranks - 1) / zero.ranks;
}

}  // namespace

Range Lowering::own_shard(const Range& whole) const {
  const std::size_t bytes = whole.size_bytes / static_cast<std::size_t>(model_.zero.ranks);
  return {whole.buffer, whole.offset + bytes * static_cast<std::size_t>(model_.zero.rank), bytes};
}

void Lowering::gather(Mover& mover, const Range& own, const Range& whole, std::int32_t chunk) {
  Op op{.kind = OpKind::kAllGather, .lane = Lane::kCollective};
  op.chunk = chunk;
  op.account = Account::kParameters;
  op.reads = {as(Role::kSource, own)};
  op.writes = {as(Role::kTarget, whole)};
  op.cost.bytes = sent_bytes(model_.zero, whole.size_bytes);
  mover.add(std::move(op));
}

void Lowering::gather_updated(const Task& task, const Range& own, const Range& whole) {
  Mover mover = Mover::store(draft_, now_, labels(task, Account::kParameters));
  gather(mover, own, whole, task.chunk);
}

Range Lowering::rounded(Mover& mover, std::int32_t unit, std::int64_t chunk, const Range& whole) {
  if (!model_.rounds_gradients()) return whole;
  const Tier tier = draft_.tier_of(whole);
  const Range home = gradients_->chunk(unit, chunk);
  Range target = home;
  if (gradients_->is_sharded(unit) || draft_.tier_of(home) != tier) {
    const std::size_t bytes =
        static_cast<std::size_t>(model_.chunk_size(unit, chunk)) * size_of(model_.gradient_type);
    target = draft_.whole(draft_.add_buffer(draft_.name("grad[{}].{} rounded", unit, chunk), bytes,
                                            tier, Account::kGradients, Life::kTransient));
  }
  Op op{.kind = OpKind::kRoundGradient,
        .lane = tier == Tier::kDevice ? Lane::kCompute : Lane::kUpdate};
  op.chunk = static_cast<std::int32_t>(chunk);
  op.account = Account::kGradients;
  op.reads = {as(Role::kSource, whole)};
  op.writes = {as(Role::kTarget, target)};
  op.cost.bytes = static_cast<double>(whole.size_bytes + target.size_bytes);
  mover.add(std::move(op));
  return target;
}

Range Lowering::reduce_finished(Mover& mover, std::int32_t unit, std::int64_t chunk,
                                const Range& whole) {
  reduce_summed(mover, unit, chunk, whole);
  return reduce(mover, unit, chunk, rounded(mover, unit, chunk, whole));
}

// Returns this rank's part of the sum over ranks.
Range Lowering::reduce_to(Mover& mover, const Range& whole, const Range& part, std::int32_t chunk) {
  Op op{.kind = OpKind::kReduceScatter, .lane = Lane::kCollective};
  op.chunk = chunk;
  op.account = Account::kGradients;
  op.reads = {as(Role::kSource, whole)};
  op.writes = {as(Role::kTarget, part)};
  op.cost.bytes = sent_bytes(model_.zero, whole.size_bytes);
  mover.add(std::move(op));
  return part;
}

Range Lowering::reduce(Mover& mover, std::int32_t unit, std::int64_t chunk, const Range& whole) {
  if (model_.zero.ranks == 1) return whole;
  const auto number = static_cast<std::int32_t>(chunk);
  if (model_.zero.of_optimizer()) {
    const Range home = gradients_->chunk(unit, chunk);
    const bool goes_home =
        gradients_->is_sharded(unit) && draft_.tier_of(home) == draft_.tier_of(whole);
    return reduce_to(mover, whole, goes_home ? home : own_shard(whole), number);
  }
  Op op{.kind = OpKind::kAllReduce, .lane = Lane::kCollective};
  op.chunk = number;
  op.account = Account::kGradients;
  op.reads = {as(Role::kSource, whole)};
  op.writes = {as(Role::kTarget, whole)};
  op.cost.bytes = 2 * sent_bytes(model_.zero, whole.size_bytes);
  mover.add(std::move(op));
  return whole;
}

void Lowering::gather_sums() {
  Op op{.kind = OpKind::kGatherSums, .lane = Lane::kCollective};
  op.account = Account::kWorkspace;
  op.reads = {as(Role::kLosses, draft_.whole(shared_.losses_host))};
  if (model_.gathers_partials() && shared_.partials != kNoBuffer) {
    op.reads.push_back(as(Role::kPartials, draft_.whole(shared_.partials)));
  }
  op.writes = {as(Role::kSums, draft_.whole(shared_.sums))};
  op.cost.bytes =
      static_cast<double>(sums_bytes_of_rank(model_, policy_.micro_batches)) * (model_.ranks() - 1);
  main_op(std::move(op), Task{});
}

}  // namespace terrace

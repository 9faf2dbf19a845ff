#include "runtime/step/draft.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "offload/raw_file.h"

namespace terrace {
namespace {

// Every buffer starts and ends on this boundary, so that direct I/O may use any buffer as a whole.
constexpr std::size_t kBufferAlignment = 4096;
static_assert(kBufferAlignment % kTransferAlignment == 0, "drives read and write buffers");

struct Hop {
  Lane lane;
  OpKind kind;
};

Hop hop_between(Tier source, Tier target) {
  if (source == Tier::kHost && target == Tier::kDevice) return {Lane::kUpload, OpKind::kUpload};
  if (source == Tier::kDevice && target == Tier::kHost) return {Lane::kDownload, OpKind::kDownload};
  if (source == Tier::kNvme && target == Tier::kHost) return {Lane::kRead, OpKind::kRead};
  TERRACE_CHECK(source == Tier::kHost && target == Tier::kNvme);
  return {Lane::kWrite, OpKind::kWrite};
}

// Op i of chunk c stands at kStride * c + kOpStride * i. So a chunk's own ops keep their order, and
// the third op of a chunk comes after the first op of the next chunk: the two chunks overlap.
constexpr std::int32_t kStride = 4;
constexpr std::int32_t kOpStride = 3;

}  // namespace

BufferId Draft::add_buffer(std::string name, std::size_t size_bytes, Tier tier, Account account,
                           Life life) {
  return add_buffer({.name = std::move(name),
                     .size_bytes = size_bytes,
                     .tier = tier,
                     .account = account,
                     .life = life});
}

BufferId Draft::add_buffer(Buffer buffer) {
  TERRACE_CHECK_LT(0U, buffer.size_bytes);
  buffer.size_bytes = round_up(buffer.size_bytes, kBufferAlignment);
  buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(buffers.size()) - 1;
}

void Draft::add_op(DraftOp op) {
  op.first_access = accesses.size();
  op.reads = static_cast<std::uint32_t>(op.op.reads.size());
  op.writes = static_cast<std::uint32_t>(op.op.writes.size());
  for (std::vector<Access>* const own : {&op.op.reads, &op.op.writes}) {
    accesses.insert(accesses.end(), own->begin(), own->end());
    *own = {};
  }
  ops.push_back(std::move(op));
}

void check_keys(const Draft& draft) {
  std::vector<BufferKey> keys;
  for (const Buffer& buffer : draft.buffers) {
    const bool is_keyed = buffer.key.kind != BufferKind::kOther;
    TERRACE_CHECK(is_keyed || buffer.life != Life::kPersistent);
    if (is_keyed) keys.push_back(buffer.key);
  }
  std::ranges::sort(keys);
  TERRACE_CHECK(std::ranges::adjacent_find(keys) == keys.end());
}

Mover Mover::load(Draft& draft, const Load& load, const Labels& labels) {
  draft.loads.push_back(load);
  draft.loads.back().unit = labels.unit;
  draft.loads.back().account = labels.account;
  const auto number = static_cast<std::int32_t>(draft.loads.size()) - 1;
  const Phase phase = load.is_late ? Phase::kLateLoad : Phase::kLoad;
  return Mover(draft, load.need_task, phase, number, labels);
}

Mover Mover::store(Draft& draft, std::int32_t task, const Labels& labels) {
  return Mover(draft, task, Phase::kStore, static_cast<std::int32_t>(draft.ops.size()), labels);
}

void Mover::add(Op op) {
  if (chunk_ != last_chunk_) step_ = 0;
  last_chunk_ = chunk_;
  op.unit = labels_.unit;
  op.group = labels_.group;
  op.micro_batch = labels_.micro_batch;
  op.parts = labels_.parts;
  DraftOp draft_op;
  draft_op.op = std::move(op);
  draft_op.task = now_;
  draft_op.phase = phase_;
  draft_op.movement = movement_;
  draft_op.step = chunk_ * kStride + step_ * kOpStride;
  ++step_;
  draft_.add_op(std::move(draft_op));
}

void Mover::hop(const Range& source, const Range& target, std::int32_t chunk) {
  TERRACE_CHECK_EQ(source.size_bytes, target.size_bytes);
  const Hop hop = hop_between(draft_.tier_of(source), draft_.tier_of(target));
  Op op;
  op.kind = hop.kind;
  op.lane = hop.lane;
  op.chunk = chunk;
  op.account = labels_.account;
  op.reads = {as(Role::kSource, source)};
  op.writes = {as(Role::kTarget, target)};
  op.cost.bytes = static_cast<double>(source.size_bytes);
  add(std::move(op));
}

void Mover::copy(const Range& source, const Range& target, std::int32_t chunk) {
  const Tier from = draft_.tier_of(source);
  const Tier to = draft_.tier_of(target);
  if (from == Tier::kHost || to == Tier::kHost) {
    hop(source, target, chunk);
    return;
  }
  const BufferId staging =
      draft_.add_buffer(draft_.name("staging of {}", draft_.buffers.at(target.buffer).name),
                        source.size_bytes, Tier::kHost, Account::kStaging, Life::kTransient);
  const Range middle{staging, 0, source.size_bytes};
  hop(source, middle, chunk);
  hop(middle, target, chunk);
}

Range Mover::bring(const Range& source, Tier tier, std::int32_t chunk) {
  if (draft_.tier_of(source) == tier) return source;
  const BufferId arrived = draft_.add_buffer(
      draft_.name("{} on {}", draft_.buffers.at(source.buffer).name, name_of(tier)),
      source.size_bytes, tier, Account::kStaging, Life::kTransient);
  if (phase_ != Phase::kStore) draft_.loads.at(movement_).target = arrived;
  const Range target{arrived, 0, source.size_bytes};
  copy(source, target, chunk);
  return target;
}

}  // namespace terrace

#include "runtime/engine/update_checksums.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/parallel_blocks.h"

namespace terrace {
namespace {

bool is_same_chunk(const Op& a, const Op& b) { return a.group == b.group && a.chunk == b.chunk; }

bool is_same_memory(const Access& a, const Access& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.size_bytes == b.size_bytes;
}

// Returns the one transfer between a drive and the memory that an update has as `access`; null if
// there is none, or if there are several.
const Op* transfer_of(const Program& program, const Op& update, Lane lane, Account account,
                      const Access& access) {
  const Op* found = nullptr;
  for (const Op& op : program.ops) {
    if (op.lane != lane || op.account != account || !is_same_chunk(op, update)) continue;
    const Access& memory = lane == Lane::kRead ? op.writes.front() : op.reads.front();
    if (found != nullptr || !is_same_memory(memory, access)) return nullptr;
    found = &op;
  }
  return found;
}

// An extent, and the memory for the bytes that are read from it or written to it.
class Place {
 public:
  Place(const Program& program, const ExecutorMemory& memory, const BlockStore& store,
        const Access& home, const Access& bytes)
      : extent_(memory.extents.at(program.buffers.at(home.buffer).offset)),
        bytes_(bytes_of(program, memory, bytes)),
        is_whole_(bytes.size_bytes == program.buffers.at(home.buffer).size_bytes &&
                  bytes.size_bytes % store.alignment() == 0) {}

  // Returns false where other bytes share a checksum with these.
  bool add(UpdateChecksums::Parts& parts, std::size_t begin, std::size_t size_bytes,
           std::size_t element_bytes, bool is_read) const {
    if (size_bytes == 0) return true;
    const std::size_t end = begin + size_bytes;
    TERRACE_CHECK_LE(end, bytes_.size());
    const bool ends = end % kChecksumBytes == 0 || end == bytes_.size();
    if (!is_whole_ || begin % kChecksumBytes != 0 || !ends) return false;
    parts.push_back({extent_, begin, bytes_.subspan(begin, size_bytes), element_bytes, is_read});
    return true;
  }

 private:
  ExtentId extent_;
  std::span<const std::byte> bytes_;
  bool is_whole_;  // the bytes are all of the extent
};

bool add_state(UpdateChecksums::Parts& parts, const Place& place, const StateLayout& layout) {
  std::vector<StatePart> state(layout.slots.begin(), layout.slots.end());
  state.push_back(layout.master);
  for (const StatePart& exponents : layout.exponents) {
    if (exponents.size_bytes != 0) return false;
  }
  UpdateChecksums::Parts added;
  for (const StatePart& part : state) {
    if (!place.add(added, part.begin, part.size_bytes, size_of(part.dtype), true)) return false;
  }
  parts.insert(parts.end(), added.begin(), added.end());
  return true;
}

// Returns the offset and the bytes that a block of elements has in a part.
std::pair<std::size_t, std::span<const std::byte>> block_of(const UpdateChecksums::Part& part,
                                                            std::int64_t begin, std::int64_t end) {
  const auto first = static_cast<std::size_t>(begin) * part.element_bytes;
  const auto size = static_cast<std::size_t>(end - begin) * part.element_bytes;
  return {part.offset + first, part.memory.subspan(first, size)};
}

}  // namespace

UpdateChecksums::UpdateChecksums(const Program& program, const ExecutorMemory& memory,
                                 const StepModel& model, BlockStore* store)
    : store_(store) {
  if (store == nullptr) return;
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::kUpdate || op.lane != Lane::kUpdate) continue;
    const HomePart home = model.home_part(StateClass::kOptimizer, op.group, op.chunk);
    if (home.pieces > 1) continue;  // a checksum may be of the bytes of two pieces
    Chunk chunk;
    const Access& state = *op.find(Role::kState);
    const Op* read = transfer_of(program, op, Lane::kRead, Account::kOptimizerState, state);
    const Op* write = transfer_of(program, op, Lane::kWrite, Account::kOptimizerState, state);
    if (read != nullptr && write != nullptr &&
        read->reads.front().buffer == write->writes.front().buffer) {
      const Place place(program, memory, *store, read->reads.front(), state);
      chunk.has_state = add_state(chunk.parts, place, model.format_of(op.group).layout(home.count));
    }
    const Access& parameter = *op.find(Role::kParameters);
    write = transfer_of(program, op, Lane::kWrite, Account::kParameters, parameter);
    if (write != nullptr) {
      const Place place(program, memory, *store, write->writes.front(), parameter);
      chunk.has_parameter =
          place.add(chunk.parts, 0, parameter.size_bytes, model.parameter_bytes(op.group), false);
    }
    if (!chunk.parts.empty()) chunks_.emplace(Key{op.group, op.chunk}, std::move(chunk));
  }
}

const UpdateChecksums::Chunk* UpdateChecksums::chunk_of(const Op& op) const {
  const auto found = chunks_.find({op.group, op.chunk});
  return found == chunks_.end() ? nullptr : &found->second;
}

bool UpdateChecksums::takes(const Op& transfer) const {
  const Chunk* chunk = chunk_of(transfer);
  if (chunk == nullptr) return false;
  if (transfer.account == Account::kOptimizerState) return chunk->has_state;
  return transfer.account == Account::kParameters && transfer.lane == Lane::kWrite &&
         chunk->has_parameter;
}

const UpdateChecksums::Parts* UpdateChecksums::parts_of(const Op& update) const {
  const Chunk* chunk = chunk_of(update);
  return chunk == nullptr ? nullptr : &chunk->parts;
}

void UpdateChecksums::compare(const Parts& parts, std::int64_t begin, std::int64_t end) const {
  for (const Part& part : parts) {
    if (!part.is_read) continue;
    const auto [offset, bytes] = block_of(part, begin, end);
    store_->compare_checksums(part.extent, offset, bytes).throw_if_failed();
  }
}

void UpdateChecksums::take(const Parts& parts, std::int64_t begin, std::int64_t end) const {
  for (const Part& part : parts) {
    const auto [offset, bytes] = block_of(part, begin, end);
    store_->take_checksums(part.extent, offset, bytes);
  }
}

}  // namespace terrace

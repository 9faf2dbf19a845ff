#include "runtime/engine/step_hashes.h"

#include <array>
#include <string_view>
#include <tuple>

namespace terrace {
namespace {

constexpr std::array<std::string_view, kHashedOps> kNames = {
    "input",  "forward",    "recompute",     "backward", "round",
    "reduce", "accumulate", "norm_partials", "norm",     "update"};

auto op_of(const HashKey& key) {
  return std::tie(key.op, key.unit, key.micro_batch, key.use, key.pass_step, key.data_rank,
                  key.tensor_rank);
}

// Returns whether an op of this kind works on one chunk of a group.
bool works_on_chunk(HashedOp op) { return HashedOp::kRound <= op && op != HashedOp::kNorm; }

}  // namespace

std::string_view name_of(HashedOp op) { return kNames.at(static_cast<std::size_t>(op)); }

bool HashKey::is_of_same_op(const HashKey& other) const {
  if (op_of(*this) != op_of(other)) return false;
  return !works_on_chunk(op) || (group == other.group && chunk == other.chunk);
}

}  // namespace terrace

#pragma once

#include <cstdint>

#include "runtime/step/draft.h"
#include "runtime/step/schedule.h"
#include "runtime/step/step_model.h"

// The ops that exchange bytes with other ranks. All data-parallel ranks compile the same exchanges
// in the same order, and so do all tensor-parallel ranks: only the part of a chunk that is the
// rank's own differs. A message between pipeline stages is a send in one stage and a receive in the
// other.
namespace terrace {

// --- data-parallel ranks (ZeRO) -----------------------------------------------------------------

// Returns an exchange of a chunk between all data-parallel ranks, without its cost.
Op data_op(OpKind kind, Account account, std::int32_t chunk, const Range& source,
           const Range& target);
// Returns the bytes that one of `ranks` ranks sends if each rank sends a part of a whole of this
// size to every other.
double sent_bytes(std::int32_t ranks, std::size_t whole_bytes);

// Returns this rank's part of a range that holds a whole chunk.
Range own_shard(const StepModel& model, const Range& whole);
// Gathers the parts of all ranks; `own` may lie in `whole`.
void gather_shards(Mover& mover, const StepModel& model, const Range& own, const Range& whole,
                   std::int32_t chunk);
// The next three are for states that are divided over the ranks of an island only. The home of a
// chunk then has a piece for each island (HomePart).
//
// Returns the piece that is this rank's own shard, in a range that holds the home of a chunk.
Range own_piece(const StepModel& model, const Range& home);
// A rank's own shard of a chunk, and the range for all pieces of the home. The shard may lie in it.
struct HomeGather {
  Range own;
  Range home;
  Account account = Account::kParameters;
};
// Gathers the pieces of a home from the ranks whose own shards they are.
void gather_between_islands(Mover& mover, const StepModel& model, const HomeGather& gather,
                            std::int32_t chunk);
// Gathers a chunk from the homes of the island's ranks. `home` does not lie in `whole`.
void gather_in_island(Mover& mover, const StepModel& model, const Range& home, const Range& whole,
                      std::int32_t chunk);
// Adds a chunk up over ranks and leaves this rank's part of the sum in `part`. Returns `part`.
Range reduce_to(Mover& mover, const StepModel& model, const Range& whole, const Range& part,
                std::int32_t chunk);
// Adds a chunk up over ranks, where it is.
void reduce_in_place(Mover& mover, const StepModel& model, const Range& whole, std::int32_t chunk);

// --- tensor-parallel ranks ----------------------------------------------------------------------

// Returns an exchange of activations.
Op tensor_op(const StepModel& model, OpKind kind, const Range& source, const Range& target);
// Adds up, over ranks, the elements of a gradient's chunk that each rank has a share of.
void reduce_summed(Mover& mover, const StepModel& model, std::int32_t group, std::int64_t chunk,
                   const Range& whole);

// --- pipeline stages ----------------------------------------------------------------------------

// Returns the op of a task that sends or receives a range. Only a send says how many bytes pass.
Op message_op(const Task& task, const Range& range, Account account);

}  // namespace terrace

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "kernels/wire_forms.h"
#include "memory/state_class.h"
#include "optim/state_format.h"
#include "parallel/zero_partition.h"
#include "runtime/model/unit_model.h"

// The states of a model's groups as chunks, which is how they are moved, stored and divided over
// data-parallel ranks.
namespace terrace {

// How the states are divided over data-parallel ranks: ZeRO (Rajbhandari et al. 2020,
// arXiv:1910.02054). Stage 0 divides nothing, stage 1 the optimizer state, stage 2 also gradients,
// stage 3 also parameters. With one rank all stages are the same.
//
// Ranks may form islands of equally many neighbours. Then stage 3 divides some states over the
// ranks of an island only, and each island holds these states whole.
struct ZeroSharding {
  std::int32_t stage = 0;
  std::int32_t ranks = 1;
  std::int32_t rank = 0;
  std::int32_t islands = 1;
  ZeroPartition partition = ZeroPartition::kAll;

  std::int32_t island_ranks() const { return ranks / islands; }
  std::int32_t island() const { return rank / island_ranks(); }
  // Returns the number of parts that a state's chunks are divided into, of which a rank has one.
  std::int32_t parts(StateClass state) const {
    if (!of(state)) return 1;
    return in_islands(state) ? island_ranks() : ranks;
  }
  // Returns whether a state is divided over the ranks of an island only.
  bool in_islands(StateClass state) const {
    const bool is_chosen = partition == ZeroPartition::kHsdp ||
                           (partition == ZeroPartition::kHpz && state == StateClass::kParameters);
    return is_chosen && islands > 1 && of(state);
  }

  bool of(StateClass state) const { return ranks > 1 && stage >= info_of(state).divided_from; }
  bool of_optimizer() const { return of(StateClass::kOptimizer); }
  bool of_gradients() const { return of(StateClass::kGradients); }
  bool of_parameters() const { return of(StateClass::kParameters); }
};

// A range of a chunk's elements.
struct ChunkPart {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// The elements of a chunk that a rank has at home, in pieces. A piece is one shard: the part of the
// chunk that a rank has if all data-parallel ranks divide it. Pieces lie one behind the other at
// home, and `stride` elements from each other in the chunk. There is one piece, or one for each
// island where the state is divided over the ranks of an island; one of these is the rank's own.
struct HomePart {
  std::int64_t begin = 0;  // of the first piece, in the chunk
  std::int64_t count = 0;  // of all pieces together
  std::int32_t pieces = 1;
  std::int64_t stride = 0;  // from the beginning of one piece to the beginning of the next

  std::int64_t piece_elements() const { return count / pieces; }
  // Returns the chunk's element that is at this place of the home.
  std::int64_t element_at(std::int64_t place) const;
  // Returns the place of an element in the home; none where it is not at home.
  std::optional<std::int64_t> place_of(std::int64_t element) const;
  // Returns whether the elements [first, end) are at home, one behind the other.
  bool has_run(std::int64_t first, std::int64_t end) const;
};

// A model whose states are in chunks.
struct ChunkedModel : ComputeModel {
  // The type of finished gradients, between ranks and at home. Sums over micro-batches are fp32.
  DType gradient_type = DType::kF32;
  StateFormat state_format;  // of the optimizer state
  // The same by group, where groups have types or update rules of their own; else empty.
  std::vector<StateFormat> formats_of_groups;
  std::int64_t chunk_elements = kChunkElements;
  ZeroSharding zero;
  WireForms wire;  // between data-parallel ranks

  ChunkedModel() = default;
  explicit ChunkedModel(ComputeModel model) : ComputeModel(std::move(model)) {}

  // --- groups ------------------------------------------------------------------------------------

  std::int32_t group_count() const { return static_cast<std::int32_t>(groups.size()); }
  // Returns the unit whose parameters a group is.
  std::int32_t owner(std::int32_t group) const { return groups.at(index(group)).unit; }
  bool group_trains(std::int32_t group) const {
    return groups.at(index(group)).trained_elements() > 0;
  }
  DType parameter_type(std::int32_t group) const {
    return groups.at(index(group)).type.value_or(compute_type);
  }
  // Return the bytes of one parameter of the group, and of all of them.
  std::size_t parameter_bytes(std::int32_t group) const { return size_of(parameter_type(group)); }
  std::size_t group_bytes(std::int32_t group) const {
    return static_cast<std::size_t>(groups.at(index(group)).padded_elements) *
           parameter_bytes(group);
  }
  const StateFormat& format_of(std::int32_t group) const {
    return formats_of_groups.empty() ? state_format : formats_of_groups.at(index(group));
  }
  // Returns the number of update rules that groups have.
  std::int32_t rules() const;
  bool rounds_gradients() const { return gradient_type != DType::kF32; }
  // Returns whether finished gradients are coded on the way between ranks.
  bool codes_gradients() const { return zero.of_optimizer() && wire.gradients != WireForm::kPlain; }
  bool keeps_errors() const { return codes_gradients() && wire.keeps_errors; }
  // Returns whether parameters are coded where they are gathered for a pass.
  bool codes_parameters() const {
    return zero.of_parameters() && wire.parameters != WireForm::kPlain;
  }

  // --- chunks ------------------------------------------------------------------------------------

  // Return the number of chunks in a group's flat sequence: of all chunks, and of those that train.
  // First come the chunks of trained elements, which gradients and optimizer state have too, then
  // the chunks of frozen elements. No chunk has both.
  std::int64_t chunks(std::int32_t group) const;
  std::int64_t trained_chunks(std::int32_t group) const;
  // Return how many of the group's elements come before a chunk, and how many are in it. All chunks
  // are full, except the last of either kind.
  std::int64_t chunk_begin(std::int32_t group, std::int64_t chunk) const;
  std::int64_t chunk_size(std::int32_t group, std::int64_t chunk) const;
  // Returns the chunk that an element of the group is in.
  std::int64_t chunk_of(std::int32_t group, std::int64_t element) const;
  // Returns a rank's equal part of a chunk; with one rank the whole chunk.
  ChunkPart shard(std::int32_t group, std::int64_t chunk, std::int32_t rank) const;

  // --- homes -------------------------------------------------------------------------------------

  // Returns the bytes that this many elements of a state take at home. Not for activations: their
  // size does not follow from a number of elements.
  std::size_t state_bytes(StateClass state, std::int32_t group, std::int64_t elements) const;
  // Returns how many of the group's chunks have such a state. They are the first chunks.
  std::int64_t home_chunks(StateClass state, std::int32_t group) const;
  // Returns the part of a chunk that the home of a state has. Gradients may be at home in parts
  // even where this says that they are whole: see Homes::is_sharded() (runtime/step/homes.h).
  HomePart home_part(StateClass state, std::int32_t group, std::int64_t chunk) const;
  std::size_t home_bytes(StateClass state, std::int32_t group, std::int64_t chunk) const;
  // Returns where a chunk begins in the home of a group, which has its chunks one behind the other.
  std::size_t home_offset(StateClass state, std::int32_t group, std::int64_t chunk) const;

 protected:
  static std::size_t index(std::int32_t number) { return static_cast<std::size_t>(number); }
};

}  // namespace terrace

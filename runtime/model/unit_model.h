#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "runtime/model/op_role.h"
#include "runtime/model/unit_elements.h"

// What the passes of a step know of a model: of each unit the compute ops that it consists of, what
// each touches, sizes and costs. Nothing here says what an op computes.
namespace terrace {

enum class UnitPass : std::uint8_t { kForward, kRecompute, kBackward };

// What a step of a unit touches: a whole buffer. Of an exchange a part of it, where `size_bytes` is
// not 0.
struct UnitAccess {
  Role role = Role::kBetween;
  std::int32_t number = 0;  // of kBetween: which of UnitModel::between
  std::size_t offset = 0;
  std::size_t size_bytes = 0;

  friend bool operator==(const UnitAccess&, const UnitAccess&) = default;
};

// A step of a unit's pass: a compute op, or what tensor-parallel ranks exchange between two of
// them. An exchange has one source and one target.
struct UnitStep {
  enum class Kind : std::uint8_t {
    kCompute,
    kGather,  // all ranks' sources, in the order of ranks
    kSum,  // of all ranks' sources: all of it where source and target are one, else a rank's rows
  };

  Kind kind = Kind::kCompute;
  std::string_view name = "";  // of a compute op that is one of several; of static storage
  // Besides the parameters, constants and workspace, which every compute op has. A gradient that is
  // written is also read where it is added to, and the loss scale only where losses are scaled.
  std::vector<UnitAccess> reads = {};
  std::vector<UnitAccess> writes = {};
  double flops = 0;

  friend bool operator==(const UnitStep&, const UnitStep&) = default;
};

// Something that one step of a pass leaves for another, and nobody else.
struct BetweenBuffer {
  std::string_view name = "";
  std::size_t size_bytes = 0;

  friend bool operator==(const BetweenBuffer&, const BetweenBuffer&) = default;
};

// Sizes and costs are of one micro-batch.
struct UnitModel {
  UnitKind kind = UnitKind::kBlock;
  std::int64_t padded_elements = 0;
  std::size_t saved_bytes = 0;
  double forward_flops = 0;
  double backward_flops = 0;  // of a head: forward and backward together
  // Products that a mask makes needless, of forward and backward: they are not computed, and are in
  // neither of these.
  double masked_flops = 0;
  std::int64_t frozen_elements = 0;  // of padded_elements, at their end
  // Of the frozen ones: bytes that are no numbers of the compute type. They are moved like those,
  // and set by FillSource::bytes (runtime/engine/unit_state.h).
  ElementSpan quantized = {};
  std::int64_t decayed_elements = 0;  // weight decay applies to so many, at their start
  // Of the elements that train, what tensor-parallel ranks have alike, and in it the gradients that
  // are sums over these ranks.
  ElementSpan replicated = {};
  ElementSpan summed = {};
  std::vector<BetweenBuffer> between = {};
  std::vector<UnitStep> forward = {};
  std::vector<UnitStep> recompute = {};  // of the forward, what the backward needs
  // Of a head: all of its forward, the loss, and their backward. Of the embedding, whose backward
  // is one op for all micro-batches: none. Of a block below all that trains: none.
  std::vector<UnitStep> backward = {};

  // Whether a step of the pass touches something in this role.
  static bool reads(const std::vector<UnitStep>& pass, Role role);
  static bool writes(const std::vector<UnitStep>& pass, Role role);

  std::int64_t trained_elements() const { return padded_elements - frozen_elements; }
  friend bool operator==(const UnitModel&, const UnitModel&) = default;
};

// How tensor-parallel ranks share every unit. With one rank there is nothing to say.
struct TensorSharing {
  std::int32_t ranks = 1;
  std::int32_t rank = 0;
  bool shares_rows = false;    // sequence parallelism: hidden states are a rank's part of the rows
  std::size_t rows_bytes = 0;  // all rows of hidden states, per micro-batch

  friend bool operator==(const TensorSharing&, const TensorSharing&) = default;
};

// A model as one rank computes it. Of its units only the first may be an embedding and only the
// last a head; any unit may be a block.
struct ComputeModel {
  std::vector<UnitModel> units;
  bool tied = false;  // the head's weight and gradient are the embedding's
  DType compute_type = DType::kBF16;
  std::size_t hidden_bytes = 0;     // a unit's output, per micro-batch
  std::size_t tokens_bytes = 0;     // tokens and targets, per micro-batch
  std::size_t constants_bytes = 0;  // rotary tables
  std::size_t workspace_bytes = 0;  // of the largest compute op
  TensorSharing tensor;

  friend bool operator==(const ComputeModel&, const ComputeModel&) = default;
};

}  // namespace terrace

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "runtime/model/op_role.h"
#include "runtime/model/unit_elements.h"

// The model as the passes of a step know it: for each unit the compute ops that it consists of, the
// buffers that each op touches, sizes and costs. Nothing here says what an op computes.
namespace terrace {

enum class UnitPass : std::uint8_t { kForward, kRecompute, kBackward };

// A buffer that a step of a unit touches as a whole. An exchange touches only a part of it where
// `size_bytes` is not 0.
struct UnitAccess {
  Role role = Role::kBetween;
  std::int32_t number = 0;  // for kBetween: which of UnitModel::between
  std::size_t offset = 0;
  std::size_t size_bytes = 0;

  friend bool operator==(const UnitAccess&, const UnitAccess&) = default;
};

// A step of a unit's pass: a compute op, or an exchange between tensor-parallel ranks that stands
// between two compute ops. An exchange has one source and one target.
struct UnitStep {
  enum class Kind : std::uint8_t {
    kCompute,
    kGather,  // all ranks' sources, in the order of ranks
    kSum,     // the sum of all ranks' sources: all of it if source is target, else a rank's rows
  };

  Kind kind = Kind::kCompute;
  std::string_view name = "";  // of a compute op that is one of several; of static storage
  // The buffers that the step touches besides the parameters, constants and workspace, which every
  // compute op has. A gradient that is written is also read where it is added to, and the loss
  // scale is read only where losses are scaled.
  std::vector<UnitAccess> reads = {};
  std::vector<UnitAccess> writes = {};
  double flops = 0;

  friend bool operator==(const UnitStep&, const UnitStep&) = default;
};

// A buffer that one step of a pass leaves for another step. Nothing else uses it.
struct BetweenBuffer {
  std::string_view name = "";
  std::size_t size_bytes = 0;

  friend bool operator==(const BetweenBuffer&, const BetweenBuffer&) = default;
};

// The description of a unit. Sizes and costs are for one micro-batch.
struct UnitModel {
  UnitKind kind = UnitKind::kBlock;
  std::int64_t padded_elements = 0;
  std::size_t saved_bytes = 0;
  double forward_flops = 0;
  double backward_flops = 0;  // a head's: forward and backward together
  // The flops of products, in forward and backward, that a mask makes needless. They are not
  // computed, and the two numbers above do not include them.
  double masked_flops = 0;
  std::int64_t frozen_elements = 0;  // the last ones of padded_elements
  // The frozen elements whose bytes are not numbers of the compute type. They are moved like the
  // others, and set by FillSource::bytes (runtime/engine/unit_state.h).
  ElementSpan quantized = {};
  std::int64_t decayed_elements = 0;  // weight decay applies to this many, from the start
  // The elements that train and that all tensor-parallel ranks have alike, and within them those
  // whose gradients are sums over these ranks.
  ElementSpan replicated = {};
  ElementSpan summed = {};
  std::vector<BetweenBuffer> between = {};
  std::vector<UnitStep> forward = {};
  std::vector<UnitStep> recompute = {};  // the part of the forward that the backward needs
  // A head's backward is all of its forward, the loss, and the backward of both. The embedding has
  // none here, because its backward is one op for all micro-batches. A block below everything that
  // trains has none either.
  std::vector<UnitStep> backward = {};

  // Returns whether a step of the pass reads, or writes, a buffer in this role.
  static bool reads(const std::vector<UnitStep>& pass, Role role);
  static bool writes(const std::vector<UnitStep>& pass, Role role);

  std::int64_t trained_elements() const { return padded_elements - frozen_elements; }
  // Returns whether the unit's backward is its forward, the loss, and the backward of both: in
  // training it then has no forward of its own.
  bool fuses_passes() const { return kind == UnitKind::kHead; }
  // Returns whether the unit's backward is one op for all micro-batches, at the end of the step.
  bool joins_micro_batches() const { return kind == UnitKind::kEmbedding; }
  friend bool operator==(const UnitModel&, const UnitModel&) = default;
};

// How tensor-parallel ranks share every unit. With one rank nothing is shared.
struct TensorSharing {
  std::int32_t ranks = 1;
  std::int32_t rank = 0;
  bool shares_rows = false;    // sequence parallelism: hidden states hold only a rank's rows
  std::size_t rows_bytes = 0;  // all rows of hidden states, per micro-batch

  friend bool operator==(const TensorSharing&, const TensorSharing&) = default;
};

// A model as one rank computes it. Only the first unit may be an embedding and only the last a
// head; any unit may be a block.
struct ComputeModel {
  std::vector<UnitModel> units;
  bool tied = false;  // the head's weight and gradient are the embedding's
  DType compute_type = DType::kBF16;
  std::size_t hidden_bytes = 0;     // a unit's output, per micro-batch
  std::size_t tokens_bytes = 0;     // tokens and targets, per micro-batch
  std::size_t constants_bytes = 0;  // rotary tables
  std::size_t workspace_bytes = 0;  // that the largest compute op needs
  TensorSharing tensor;

  friend bool operator==(const ComputeModel&, const ComputeModel&) = default;
};

}  // namespace terrace

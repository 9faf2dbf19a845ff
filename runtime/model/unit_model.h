#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "runtime/model/op_role.h"
#include "runtime/model/unit_elements.h"

// The model as the passes of a step know it. For each unit: the compute ops that it consists of,
// the parameters and buffers that each op touches, sizes and costs. For each group of parameters:
// its sizes. Nothing here says what an op computes.
namespace terrace {

enum class UnitPass : std::uint8_t { kForward, kRecompute, kBackward };

// Parameters that are fetched, kept at home, divided over ranks and updated together, with their
// gradients and optimizer state. They are one flat sequence of elements: first those that train,
// then the frozen ones.
struct ParameterGroup {
  std::int32_t unit = 0;           // whose parameters these are; other units may use them, too
  std::optional<DType> type = {};  // of the parameters; none: ComputeModel::compute_type
  std::int32_t rule = 0;           // 0, or a number of OptimizerOptions::further_rules from 1
  std::int64_t padded_elements = 0;
  std::int64_t frozen_elements = 0;  // the last ones of padded_elements
  // The frozen elements whose bytes are not numbers of the group's type. They are moved like the
  // others, and set by FillSource::bytes (runtime/engine/unit_state.h).
  ElementSpan quantized = {};
  std::int64_t decayed_elements = 0;  // weight decay applies to this many, from the start
  // Random numbers of (stream, element) round slots of fewer than 32 bits. The elements of the
  // stream are counted from `first_element` on. No stream: the group's number is its stream.
  std::optional<std::int32_t> stream = {};
  // Where the group begins among the elements of all the unit's own groups, which lie one behind
  // the other. It counts only where a unit's own elements are asked for as one sequence, and for
  // the random numbers. So both are the same however the unit's elements are cut into groups.
  std::int64_t first_element = 0;
  // The elements that train and that all tensor-parallel ranks have alike, and within them those
  // whose gradients are sums over these ranks.
  ElementSpan replicated = {};
  ElementSpan summed = {};

  std::int64_t trained_elements() const { return padded_elements - frozen_elements; }
  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

// A buffer that a step of a unit touches as a whole. An exchange touches only a part of it where
// `size_bytes` is not 0.
struct UnitAccess {
  Role role = Role::kBetween;
  // For kBetween: which of UnitModel::between. For kGradient: which of UnitModel::groups. For
  // kHidden and kHiddenGradientOut: which of the unit's inputs.
  std::int32_t number = 0;
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
  // Whether the step begins a part of the pass that stands for itself in the step's order. The
  // parameters that only this part uses are fetched for it alone.
  bool begins_part = false;
  // The groups whose parameters a compute op reads, as indices of UnitModel::groups. A unit without
  // groups has no parameters, whatever this says.
  std::vector<std::int32_t> groups = {0};
  // The buffers that the step touches besides parameters, constants and workspace. Every compute op
  // has the last two. A gradient that is written is also read where it is added to, and the loss
  // scale is read only where losses are scaled.
  // Several steps of a part may write a gradient, but no element of it twice. Another part may not
  // write it.
  std::vector<UnitAccess> reads = {};
  std::vector<UnitAccess> writes = {};
  double flops = 0;

  friend bool operator==(const UnitStep&, const UnitStep&) = default;
};

// Neighbouring steps of a pass, [begin, end).
struct StepSpan {
  std::int32_t begin = 0;
  std::int32_t end = 0;

  friend bool operator==(const StepSpan&, const StepSpan&) = default;
};

// A buffer that one step of a pass leaves for another step. Nothing else uses it.
struct BetweenBuffer {
  std::string_view name = "";
  std::size_t size_bytes = 0;

  friend bool operator==(const BetweenBuffer&, const BetweenBuffer&) = default;
};

// A tensor in a buffer that has several of them, or that a unit writes only in part.
struct TensorRange {
  Role role = Role::kSaved;
  std::int32_t number = 0;     // as in UnitAccess
  std::string_view name = "";  // of static storage
  std::size_t offset = 0;
  std::size_t size_bytes = 0;

  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};

// The description of a unit. Sizes and costs are for one micro-batch.
struct UnitModel {
  UnitKind kind = UnitKind::kBlock;
  // The parameters that the unit uses, as numbers of ComputeModel::groups: first its own, then
  // those of other units, such as the embedding's where the head has the same weight.
  std::vector<std::int32_t> groups = {};
  // The units whose outputs the unit reads, before it in the order of the step. Role::kHidden with
  // number n is the output of the nth of them. Empty: it reads the output of the unit that was
  // computed before it.
  std::vector<std::int32_t> inputs = {};
  std::size_t saved_bytes = 0;
  double forward_flops = 0;
  double backward_flops = 0;  // a head's: forward and backward together
  // The flops of products, in forward and backward, that a mask makes needless. They are not
  // computed, and the two numbers above do not include them.
  double masked_flops = 0;
  std::vector<BetweenBuffer> between = {};
  std::vector<UnitStep> forward = {};
  std::vector<UnitStep> recompute = {};  // the part of the forward that the backward needs
  // A head's backward is all of its forward, the loss, and the backward of both. The embedding has
  // none here, because its backward is one op for all micro-batches. A block below everything that
  // trains has none either.
  std::vector<UnitStep> backward = {};
  // The saved tensors, and the parts of gradients of other units' groups that the unit writes. Only
  // for recording what a step computes: bytes between them are never set.
  std::vector<TensorRange> ranges = {};

  // Returns whether a step of the pass reads, or writes, a buffer in this role.
  static bool reads(const std::vector<UnitStep>& pass, Role role);
  static bool writes(const std::vector<UnitStep>& pass, Role role);
  // Returns whether a step of the pass writes the gradient of the group with this index.
  static bool writes_gradient(const std::vector<UnitStep>& pass, std::int32_t index);
  // Returns the parts of a pass, in order.
  static std::vector<StepSpan> parts(const std::vector<UnitStep>& pass);

  // Returns whether the unit's backward is its forward, the loss, and the backward of both: in
  // training it then has no forward of its own.
  bool fuses_passes() const { return kind == UnitKind::kHead; }
  // Returns whether the unit's backward is one op for all micro-batches, at the end of the step.
  bool joins_micro_batches() const { return kind == UnitKind::kEmbedding; }
  friend bool operator==(const UnitModel&, const UnitModel&) = default;
};

// Returns whether two units compute the same, apart from whose parameters and outputs they use.
bool computes_alike(const UnitModel& a, const UnitModel& b);

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
  std::vector<ParameterGroup> groups;  // in the order of the units whose parameters they are
  DType compute_type = DType::kBF16;
  std::size_t hidden_bytes = 0;     // a unit's output, per micro-batch
  std::size_t tokens_bytes = 0;     // tokens and targets, per micro-batch
  std::size_t constants_bytes = 0;  // rotary tables
  std::size_t workspace_bytes = 0;  // that the largest compute op needs
  // The fp64 numbers that a unit's forward leaves in Role::kRouterSums for each micro-batch
  // (RouterSums in kernels/expert_ops.h); 0: no unit does. A step without a backward has no such
  // buffer.
  std::int64_t router_sums = 0;
  TensorSharing tensor;

  // Adds a unit with one group of its own, which comes first among the groups that the unit uses.
  void add(UnitModel unit, ParameterGroup group);
  // Gives the last unit another group of its own, behind the groups that it has.
  void add_group(ParameterGroup group);
  // Returns which of the unit's own groups has an element of the sequence in which these lie one
  // behind the other (ParameterGroup::first_element).
  std::int32_t group_at(std::int32_t unit, std::int64_t element) const;
  friend bool operator==(const ComputeModel&, const ComputeModel&) = default;
};

}  // namespace terrace

#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/model/batch_shape.h"
#include "runtime/model/model_config.h"
#include "runtime/model/parameter_layout.h"
#include "runtime/model/unit_graph.h"

// The layers that units are made of. Each writes the kernel calls of its forward and its backward
// into a unit's graph. Letters: R is the number of rows of a micro-batch, n the number of this
// rank's own rows (R, or R / N with sequence parallelism over N ranks), C the width.
namespace terrace {

// A parameter and its gradient. Both are kNoTensor where there is no such parameter; the gradient
// is also kNoTensor where the parameter is frozen. The value of a quantised matrix is its bytes.
struct WeightPart {
  TensorId value = kNoTensor;
  TensorId gradient = kNoTensor;
  std::int64_t first = 0;  // the place of its first row in the whole weight
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::optional<QuantizedShape> quantized = std::nullopt;
};
// Parameters that are multiplied as one. They have `parts` in place of `value` and `gradient` if
// they do not lie side by side, because only some of them train or because they are quantised.
struct Weight {
  TensorId value = kNoTensor;
  TensorId gradient = kNoTensor;
  std::vector<WeightPart> parts = {};
};

// The place of an adapter's input, from which its random numbers follow: the number of the layer in
// its unit (layer_number()), and the column of the whole input at which this rank's columns begin.
struct DropoutPlace {
  std::uint32_t layer = 0;
  std::int64_t first_column = 0;
};

// An adapter of the rows [first, first + rows) of a linear layer's result (adapter.h).
struct LayerAdapter {
  Weight a = {};
  Weight b = {};
  Weight magnitudes = {};  // kNoTensor: it has no magnitudes
  DropoutPlace dropout_place = {};
  std::int64_t first = 0;
  std::int64_t rows = 0;
  float scale = 1;
};

// The place of a layer: the graph that it is written into, and a description of the unit.
struct LayerSite {
  UnitGraph& graph;
  const ModelConfig& config;  // of this rank's part
  const UnitLayout& layout;
  BatchShape batch;
  DType type = DType::kBF16;  // compute type
  TensorSplit split;
  std::uint64_t dropout_key = 0;
  std::int64_t experts_per_group = 0;  // DecoderPart::experts_per_group

  // Adds a tensor of all rows, [R, columns], or of this rank's rows, [n, columns], in the compute
  // type. It is in scratch until the graph says otherwise.
  TensorId all_rows(std::string_view name, std::int64_t columns) const;
  TensorId own_rows(std::string_view name, std::int64_t columns) const;
  // Adds a tensor with an fp32 number for each row, or `columns` of them.
  TensorId per_row(std::string_view name, std::int64_t rows, std::int64_t columns = 1) const;
  // Adds a tensor in a buffer that the op is given, not in scratch.
  TensorId boundary(Role role, std::string_view name, std::int64_t columns) const;
  // Adds one of the lists of the micro-batch's tokens, [R]. Returns kNoTensor where the batch has
  // no such list.
  TensorId numbers(RowNumbers list) const;
  // Adds `rows` rows of a unit's parameters, from the first row of `kind` on, in the buffer of that
  // role. The rows may belong to several parameters that lie side by side. Returns kNoTensor where
  // the unit has no such parameter, and for the gradient of a frozen one.
  TensorId parameter(const UnitLayout& unit, ParameterKind kind, std::int64_t rows,
                     Role role) const;
  // Adds a parameter of this unit with its gradient; as parts where it is quantised.
  Weight weight(ParameterKind kind, std::int64_t rows) const;
  // Adds the parameters of these kinds that the unit has. They are multiplied as one in this order.
  Weight joined_weight(std::initializer_list<ParameterKind> kinds) const;
  // Adds a parameter of this unit as a part of a larger weight, in which its rows begin at row
  // `first`.
  WeightPart weight_part(const ParameterTensor& tensor, std::int64_t first) const;
  // Adds the adapters of these weights, which are multiplied as one in this order.
  std::vector<LayerAdapter> adapters(std::initializer_list<ParameterKind> kinds) const;
};

// Sets the gradient of elements that are no parameters to zero, before the others are written: of
// the unit's own group, not of experts.
void clear_padding(const LayerSite& site);

// y[n,C]: the layer norm or root-mean-square norm of each row, as the model's NormOptions say.
struct NormWeights {
  Weight weight;
  Weight bias;
};
TensorId norm(const LayerSite& site, TensorId x, const NormWeights& weights);

// The linear layer: y = x weight^T + bias, and what adapters add to it, written into `y`.
struct LinearWeights {
  Weight weight;
  Weight bias;
  std::vector<LayerAdapter> adapters = {};
  // Whether the ranks' products are added up. Then only the first rank adds the bias.
  bool is_partial = false;
  // Set for an adapter's A whose input has elements dropped.
  std::optional<DropoutPlace> dropout = std::nullopt;
};
TensorId linear(const LayerSite& site, TensorId x, const LinearWeights& weights, TensorId y);
// Returns the whole of a weight, its parts side by side. It is made in scratch where the parts are
// elsewhere or quantised.
TensorId side_by_side(const LayerSite& site, const Weight& weight);
// Adds scale (x a^T) b^T to the columns of `y` that belong to the adapter. With dropout, a reads x
// with elements dropped.
void add_adapter(const LayerSite& site, TensorId x, const LayerAdapter& adapter, TensorId y);

// y = x, except that the columns of adapters with magnitudes are multiplied with magnitude / norm.
// The bias in them is not multiplied. x is a linear layer's result, including what adapters add.
struct MagnitudeTensors {
  TensorId input;   // of the linear layer
  TensorId weight;  // as it was multiplied
  TensorId bias;    // or none
  TensorId x, y;
};
void apply_magnitudes(const LayerSite& site, const MagnitudeTensors& t,
                      const std::vector<LayerAdapter>& adapters);

// Applies the model's norms of queries and keys to q|k|v [R, (H+2G)D]. Returns [R, (H+G)D], or
// q|k|v itself where there are no such norms. A norm of the whole width needs all ranks' sums of
// squares.
TensorId query_key_norms(const LayerSite& site, TensorId qkv);

// Computes rotary embedding, in place, and causal attention. Queries and keys come from `normed`,
// which query_key_norms() returned, and values from q|k|v. Returns [R, HD].
TensorId attention(const LayerSite& site, TensorId qkv, TensorId normed, const LayerOptions& layer);

// Returns [R, I], computed from [R, I] or, if gated, from [R, 2I].
TensorId activation(const LayerSite& site, TensorId x);

// Writes a + factor * b to `sum`, and returns `sum`.
TensorId add(const LayerSite& site, TensorId a, TensorId b, TensorId sum, float factor);

// The part of a unit between enter() and leave(), in which each tensor-parallel rank has all rows
// of x and a part of the columns. The step that begins at enter() is named `into`, and the step
// after leave() is named `behind`. In the backward, the step for what comes before enter() is named
// `back`. With one rank, enter() and leave() do nothing.
struct Branch {
  TensorId own = kNoTensor;  // x: this rank's rows
  TensorId all = kNoTensor;  // the rows of all ranks
  std::string_view inside = "";
};
Branch enter(const LayerSite& site, TensorId x, std::string_view into, std::string_view back);
// Adds up the `partial` results of all ranks, and returns this rank's rows of the sum.
TensorId leave(const LayerSite& site, const Branch& branch, TensorId partial,
               std::string_view behind);

}  // namespace terrace

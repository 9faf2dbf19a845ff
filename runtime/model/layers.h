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

// The layers that units are made of. Each writes its kernel calls, and those of its way back, into
// a unit's graph. Letters: R rows of a micro-batch, n this rank's own of them (R, or R / N with
// sequence parallelism over N ranks), C width.
namespace terrace {

// A parameter and its gradient; both kNoTensor where there is none, the gradient also where the
// parameter is frozen. The value of a quantised matrix is its bytes.
struct WeightPart {
  TensorId value = kNoTensor;
  TensorId gradient = kNoTensor;
  std::int64_t first = 0;  // of its rows, in the whole
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::optional<QuantizedShape> quantized = std::nullopt;
};
// Those that are multiplied as one and do not lie side by side, because only some of them train or
// because they are quantised, have parts in place of these.
struct Weight {
  TensorId value = kNoTensor;
  TensorId gradient = kNoTensor;
  std::vector<WeightPart> parts = {};
};

// An adapter of the rows [first, first + rows) of a linear layer's result (adapter.h).
struct LayerAdapter {
  Weight a = {};
  Weight b = {};
  Weight magnitudes = {};  // none: it has no magnitudes
  std::int64_t first = 0;
  std::int64_t rows = 0;
  float scale = 1;
};

// Where a layer stands: the graph that it is written into, and what the unit is.
struct LayerSite {
  UnitGraph& graph;
  const ModelConfig& config;  // of this rank's part
  const UnitLayout& layout;
  BatchShape batch;
  DType type = DType::kBF16;  // compute type
  TensorSplit split;

  // [R, columns] and [n, columns] in the compute type, in scratch until the graph says otherwise.
  TensorId all_rows(std::string_view name, std::int64_t columns) const;
  TensorId own_rows(std::string_view name, std::int64_t columns) const;
  // A number a row, fp32.
  TensorId per_row(std::string_view name, std::int64_t rows, std::int64_t columns = 1) const;
  // A buffer that the op is given: not scratch.
  TensorId boundary(Role role, std::string_view name, std::int64_t columns) const;
  // One of the lists of the micro-batch's tokens, [R]; kNoTensor where the batch has no such list.
  TensorId numbers(RowNumbers list) const;
  // Of a unit's parameter `kind`, `rows` rows from its first on (all that lie side by side), in the
  // buffer of that role. kNoTensor where the unit has no such parameter, and of the gradient of one
  // that is frozen.
  TensorId parameter(const UnitLayout& unit, ParameterKind kind, std::int64_t rows,
                     Role role) const;
  // Of this unit's, with its gradient; as parts where it is quantised.
  Weight weight(ParameterKind kind, std::int64_t rows) const;
  // Of those of these kinds that the unit has, which are multiplied as one in this order.
  Weight joined_weight(std::initializer_list<ParameterKind> kinds) const;
  // Of this unit's, whose rows are those from `first` on of what is multiplied as one.
  WeightPart weight_part(const ParameterTensor& tensor, std::int64_t first) const;
  // The adapters of these weights, which are multiplied as one in this order.
  std::vector<LayerAdapter> adapters(std::initializer_list<ParameterKind> kinds) const;
};

// y[n,C]: layer norm or root-mean-square norm of each row, as the model's NormOptions say.
struct NormWeights {
  Weight weight;
  Weight bias;
};
TensorId norm(const LayerSite& site, TensorId x, const NormWeights& weights);

// y = x weight^T + bias, into `y`, and what adapters add to it.
struct LinearWeights {
  Weight weight;
  Weight bias;
  std::vector<LayerAdapter> adapters = {};
  // The rank's products are added over the ranks, and the bias is the first rank's to add.
  bool is_partial = false;
};
TensorId linear(const LayerSite& site, TensorId x, const LinearWeights& weights, TensorId y);
// y += scale (x a^T) b^T, in the adapter's rows of the layer's result: columns of `y`.
void add_adapter(const LayerSite& site, TensorId x, const LayerAdapter& adapter, TensorId y);

// y = x, whose columns of adapters with magnitudes are multiplied with magnitude by norm, but for
// the bias. x is a linear layer's result with what adapters add to it.
struct MagnitudeTensors {
  TensorId input;   // of the layer
  TensorId weight;  // as it was multiplied
  TensorId bias;    // or none
  TensorId x, y;
};
void apply_magnitudes(const LayerSite& site, const MagnitudeTensors& t,
                      const std::vector<LayerAdapter>& adapters);

// The norms that the model has of queries and keys, of q|k|v [R, (H+2G)D]: [R, (H+G)D], or q|k|v
// itself where there are none. A norm of the whole width needs all ranks' sums of squares.
TensorId query_key_norms(const LayerSite& site, TensorId qkv);

// Rotary embedding, in place, and causal attention: queries and keys from `normed`, which
// query_key_norms() gave, values from q|k|v. [R, HD].
TensorId attention(const LayerSite& site, TensorId qkv, TensorId normed, const LayerOptions& layer);

// [R, I] of [R, I] or, gated, of [R, 2I].
TensorId activation(const LayerSite& site, TensorId x);

// a + factor * b.
TensorId add(const LayerSite& site, TensorId a, TensorId b, TensorId sum, float factor);

// Between these two, tensor-parallel ranks have all rows of x and each a part of the columns. The
// step that begins there is named `into`, that behind leave() `behind`; on the way back the step
// before is `back`. With one rank they do nothing.
struct Branch {
  TensorId own = kNoTensor;  // x: this rank's rows
  TensorId all = kNoTensor;  // all ranks'
  std::string_view inside = "";
};
Branch enter(const LayerSite& site, TensorId x, std::string_view into, std::string_view back);
// The sum over the ranks of what each has made, this rank's rows.
TensorId leave(const LayerSite& site, const Branch& branch, TensorId partial,
               std::string_view behind);

}  // namespace terrace

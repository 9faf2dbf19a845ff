#include <utility>

#include "runtime/model/adapter.h"
#include "runtime/model/dropout.h"
#include "runtime/model/layers.h"

// An adapter's addition to a linear layer's result: two linear layers, one after the other, and a
// scaled addition. Values that pass between them are rounded to the compute type.
namespace terrace {
namespace {

// The columns of y to which `addend` is added, times `scale`. In the backward, the gradient of the
// addend is `scale` times the gradient of these columns.
struct AdapterColumns {
  TensorId addend, y;
  std::int64_t first, width;
  float scale;
};

UnitCall add_to_columns(const AdapterColumns& c) {
  UnitCall call;
  call.reads = {c.addend, c.y};
  call.writes = {c.y};
  call.run = [c](const UnitRun& run) {
    run.kernels.scale_rows(
        run.context, {whole_rows(run.view(c.addend)), columns_of(run.view(c.y), c.first, c.width),
                      c.scale, true});
  };
  return call;
}

UnitCall take_from_columns(const AdapterColumns& c, TensorId dy, TensorId daddend) {
  UnitCall call;
  call.reads = {dy};
  call.writes = {daddend};
  call.run = [=](const UnitRun& run) {
    run.kernels.scale_rows(run.context, {columns_of(run.view(dy), c.first, c.width),
                                         whole_rows(run.view(daddend)), c.scale, false});
  };
  return call;
}

}  // namespace

// Returns one adapter for the weights of one stored tensor. They share A, and their Bs lie side by
// side, so they are one layer.
std::vector<LayerAdapter> LayerSite::adapters(std::initializer_list<ParameterKind> kinds) const {
  std::vector<LayerAdapter> adapters;
  std::int64_t first = 0;
  for (const ParameterKind kind : kinds) {
    const ParameterTensor* const weight = layout.find(kind);
    if (weight == nullptr) continue;
    const ParameterTensor* const a = layout.find(adapter_a(kind));
    const bool has_b = layout.find(adapter_b(kind)) != nullptr;
    if (a != nullptr) {
      const bool is_cut = a->cut == TensorCut::kColumns;
      adapters.push_back(
          {.dropout_place = {layer_number(kind), is_cut ? split.rank * a->columns : 0},
           .first = first,
           .scale = a->adapter_scale});
    }
    if (has_b) adapters.back().rows += weight->rows;
    first += weight->rows;
  }
  auto adapter = adapters.begin();
  for (const ParameterKind kind : kinds) {
    const ParameterTensor* const a = layout.find(adapter_a(kind));
    if (a == nullptr) continue;
    adapter->a = this->weight(adapter_a(kind), a->rows);
    adapter->b = this->weight(adapter_b(kind), adapter->rows);
    adapter->magnitudes = this->weight(adapter_magnitude(kind), adapter->rows);
    ++adapter;
  }
  return adapters;
}

void add_adapter(const LayerSite& site, TensorId x, const LayerAdapter& adapter, TensorId y) {
  UnitGraph& graph = site.graph;
  const std::int64_t rank = graph.at(adapter.a.value).rows();
  LinearWeights a = {.weight = adapter.a, .bias = {}};
  if (has_dropout(site)) a.dropout = adapter.dropout_place;
  const TensorId down = linear(site, x, a, site.all_rows("adapter down", rank));
  const TensorId up = linear(site, down, {.weight = adapter.b, .bias = {}},
                             site.all_rows("adapter up", adapter.rows));
  const AdapterColumns columns = {up, y, adapter.first, adapter.rows, adapter.scale};
  graph.call(add_to_columns(columns));
  graph.on_backward({up}, [&graph, columns] {
    const TensorId dup = graph.next_gradient(columns.addend);
    graph.call(take_from_columns(columns, graph.gradient(columns.y), dup));
  });
}

}  // namespace terrace

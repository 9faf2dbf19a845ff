#include <utility>

#include "runtime/model/layers.h"

// The effect that the magnitudes of adapters (DoRA) have on a linear layer's result. The norms
// depend on the parameters alone. They are computed anew for each micro-batch, like everything that
// a unit computes.
namespace terrace {
namespace {

// Columns of a layer's result, with the factors that they are multiplied with.
struct MagnitudeColumns {
  LayerAdapter adapter;
  TensorId inverses, factors;  // fp32 [rows]
};

// Columns that have no magnitude.
struct PlainColumns {
  std::int64_t first = 0;
  std::int64_t width = 0;
};

TensorView rows_of(const TensorView& matrix, std::int64_t first, std::int64_t rows) {
  const std::int64_t columns = matrix.elements() / matrix.shape[0];
  std::byte* const begin =
      matrix.empty()
          ? nullptr
          : matrix.data + static_cast<std::size_t>(first * columns) * size_of(matrix.dtype);
  return view(begin, matrix.dtype, rows, columns);
}

// Makes the call that computes product = B A.
UnitCall product_of_adapter(const LayerAdapter& adapter, TensorId product) {
  UnitCall call;
  call.reads = {adapter.a.value, adapter.b.value};
  call.writes = {product};
  const auto op = [a = adapter.a.value, b = adapter.b.value, product](const UnitRun& run) {
    return MatmulBackwardInput{run.view(b), run.view(a), run.view(product)};
  };
  call.run = [op](const UnitRun& run) { run.kernels.matmul_backward_input(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.matmul_backward_input_workspace(op(run), workers);
  };
  return call;
}

// Makes the call that turns the product into W + s B A, and computes the columns' factors from it.
UnitCall factors_of_columns(const MagnitudeColumns& c, TensorId weight, TensorId product,
                            TensorId squares) {
  UnitCall call;
  call.reads = {weight, product, c.adapter.magnitudes.value};
  call.writes = {product, squares, c.inverses, c.factors};
  call.run = [=, first = c.adapter.first, rows = c.adapter.rows, scale = c.adapter.scale,
              magnitudes = c.adapter.magnitudes.value, inverses = c.inverses,
              factors = c.factors](const UnitRun& run) {
    const TensorView sum = run.view(product);
    run.kernels.add(run.context, {rows_of(run.view(weight), first, rows), sum, sum, scale});
    run.kernels.row_squares(run.context, {whole_rows(sum), run.view(squares)});
    run.kernels.magnitude_factors(run.context, {run.view(squares), run.view(magnitudes),
                                                run.view(inverses), run.view(factors)});
  };
  return call;
}

MagnitudeColumns add_factors(const LayerSite& site, const MagnitudeTensors& t,
                             const LayerAdapter& adapter) {
  UnitGraph& graph = site.graph;
  const std::int64_t inputs = graph.at(adapter.a.value).columns();
  const std::int64_t rank = graph.at(adapter.a.value).rows();
  const TensorId product = graph.add(
      {.name = "adapter product", .dtype = site.type, .shape = {adapter.rows, inputs, 1, 1}});
  const TensorId squares = site.per_row("squares of rows", adapter.rows);
  MagnitudeColumns columns = {adapter, site.per_row("inverse norms", adapter.rows),
                              site.per_row("factors", adapter.rows)};
  UnitCall multiply = product_of_adapter(adapter, product);
  multiply.flops = 2.0 * static_cast<double>(adapter.rows * inputs * rank);
  graph.call(std::move(multiply));
  graph.call(factors_of_columns(columns, t.weight, product, squares));
  return columns;
}

// Returns the plain columns of a result of `width` columns: those between the columns of `all`,
// which are in order.
std::vector<PlainColumns> plain_columns(const std::vector<MagnitudeColumns>& all,
                                        std::int64_t width) {
  std::vector<PlainColumns> plain;
  std::int64_t end = 0;
  for (const MagnitudeColumns& c : all) {
    if (end < c.adapter.first) plain.push_back({end, c.adapter.first - end});
    end = c.adapter.first + c.adapter.rows;
  }
  if (end < width) plain.push_back({end, width - end});
  return plain;
}

// Makes the call that writes y from x: scaled columns, and copies of plain ones.
UnitCall scaled_columns(std::vector<MagnitudeColumns> all, TensorId x, TensorId bias, TensorId y,
                        std::int64_t width) {
  UnitCall call;
  call.reads = {x};
  if (bias != kNoTensor) call.reads.push_back(bias);
  for (const MagnitudeColumns& c : all) call.reads.push_back(c.factors);
  call.writes = {y};
  std::vector<PlainColumns> plain = plain_columns(all, width);
  call.run = [all = std::move(all), plain = std::move(plain), x, bias, y](const UnitRun& run) {
    const TensorView from = run.view(x);
    const TensorView to = run.view(y);
    for (const MagnitudeColumns& c : all) {
      const auto [first, rows] = std::pair(c.adapter.first, c.adapter.rows);
      const TensorView of_columns =
          bias == kNoTensor ? TensorView{} : rows_of(run.view(bias), first, rows);
      run.kernels.scale_columns(run.context, {columns_of(from, first, rows),
                                              {},
                                              run.view(c.factors),
                                              of_columns,
                                              columns_of(to, first, rows)});
    }
    for (const PlainColumns& c : plain) {
      run.kernels.scale_rows(run.context, {columns_of(from, c.first, c.width),
                                           columns_of(to, c.first, c.width), 1.0F, false});
    }
  };
  return call;
}

// Makes the call that computes, for each row and column, the terms that the magnitude's gradient is
// the sum of.
UnitCall magnitude_terms(const MagnitudeColumns& c, const MagnitudeTensors& t, TensorId dy,
                         TensorId terms) {
  UnitCall call;
  call.reads = {t.x, dy, c.inverses};
  if (t.bias != kNoTensor) call.reads.push_back(t.bias);
  call.writes = {terms};
  call.run = [=, first = c.adapter.first, rows = c.adapter.rows,
              inverses = c.inverses](const UnitRun& run) {
    const TensorView bias =
        t.bias == kNoTensor ? TensorView{} : rows_of(run.view(t.bias), first, rows);
    run.kernels.scale_columns(
        run.context, {columns_of(run.view(t.x), first, rows), columns_of(run.view(dy), first, rows),
                      run.view(inverses), bias, whole_rows(run.view(terms))});
  };
  return call;
}

// Makes the call that computes the gradient: the column sums of the terms, as for a bias.
UnitCall magnitude_gradient(TensorId input, TensorId terms, TensorId gradient) {
  UnitCall call;
  call.reads = {terms};
  call.writes = {gradient};
  const auto op = [=](const UnitRun& run) {
    const TensorView dy = run.view(terms);
    TensorView x = run.view(input);
    x.data = nullptr;
    const TensorView dweight = view(nullptr, DType::kF32, dy.shape[1], x.shape[1]);
    return MatmulBackwardWeight{dy,         x, dweight, run.view(gradient), run.mode(gradient),
                                dy.shape[1]};
  };
  call.run = [op](const UnitRun& run) { run.kernels.matmul_backward_weight(run.context, op(run)); };
  call.workspace = [op](const UnitRun& run, int workers) {
    return run.kernels.matmul_backward_weight_workspace(op(run), workers);
  };
  return call;
}

}  // namespace

void apply_magnitudes(const LayerSite& site, const MagnitudeTensors& t,
                      const std::vector<LayerAdapter>& adapters) {
  UnitGraph& graph = site.graph;
  std::vector<MagnitudeColumns> all;
  for (const LayerAdapter& adapter : adapters) all.push_back(add_factors(site, t, adapter));
  const std::int64_t width = graph.at(t.x).columns();
  graph.call(scaled_columns(all, t.x, t.bias, t.y, width));
  graph.on_backward({t.x}, [site, t, all, width] {
    UnitGraph& back = site.graph;
    const TensorId dy = back.gradient(t.y);
    for (const MagnitudeColumns& c : all) {
      if (c.adapter.magnitudes.gradient == kNoTensor) continue;  // of a model that is sampled
      const TensorId terms = site.all_rows("magnitude terms", c.adapter.rows);
      back.call(magnitude_terms(c, t, dy, terms));
      back.call(magnitude_gradient(t.input, terms, c.adapter.magnitudes.gradient));
    }
    back.call(scaled_columns(all, dy, kNoTensor, back.next_gradient(t.x), width));
  });
}

}  // namespace terrace

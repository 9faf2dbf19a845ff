#include "runtime/model/layers.h"

// The places where tensor-parallel ranks exchange what a unit computes.
namespace terrace {

Branch enter(const LayerSite& site, TensorId x, std::string_view into, std::string_view back) {
  UnitGraph& graph = site.graph;
  Branch branch{.own = x, .all = x, .inside = into};
  if (site.split.ranks == 1) return branch;
  graph.begin_step(into);
  if (site.split.shares_rows) {
    branch.all = site.all_rows("gathered", graph.at(x).columns());
    graph.exchange(UnitStep::Kind::kGather, x, branch.all);
  } else {
    branch.all = graph.like(x, "shared");
    graph.at(branch.all).same_as = x;
  }
  graph.on_backward({x}, [site, branch, back] {
    const TensorId partial = site.graph.gradient(branch.all);
    const bool cuts = site.split.shares_rows;
    const TensorId sum =
        cuts ? site.own_rows("reduced", site.graph.at(partial).columns()) : partial;
    site.graph.exchange(UnitStep::Kind::kSum, partial, sum);
    site.graph.begin_step(back);
    site.graph.add_to_gradient(branch.own, sum);
  });
  return branch;
}

TensorId leave(const LayerSite& site, const Branch& branch, TensorId partial,
               std::string_view behind) {
  if (site.split.ranks == 1) return partial;
  UnitGraph& graph = site.graph;
  const std::int64_t columns = graph.at(partial).columns();
  const TensorId sum =
      site.split.shares_rows ? site.own_rows("reduced", columns) : graph.like(partial, "sum");
  if (!site.split.shares_rows) graph.at(sum).same_as = partial;
  graph.exchange(UnitStep::Kind::kSum, partial, site.split.shares_rows ? sum : partial);
  graph.begin_step(behind);
  graph.on_backward({partial}, [site, branch, partial, sum, columns] {
    const TensorId own = site.graph.gradient(sum);
    TensorId all = own;
    if (site.split.shares_rows) {
      all = site.all_rows("gathered", columns);
      site.graph.exchange(UnitStep::Kind::kGather, own, all);
      site.graph.exchange(UnitStep::Kind::kGather, branch.own, branch.all);  // which was not saved
    }
    site.graph.begin_step(branch.inside);
    site.graph.set_gradient(partial, all);
  });
  return sum;
}

}  // namespace terrace

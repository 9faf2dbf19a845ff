#include <utility>
#include <vector>

#include "runtime/model/layers.h"

namespace terrace {

void clear_padding(const LayerSite& site) {
  std::vector<TensorId> pieces;
  for (const ElementSpan& span : site.layout.padding) {
    if (span.begin >= site.layout.trained_elements()) continue;
    pieces.push_back(
        site.graph.add({.name = "padding",
                        .dtype = DType::kF32,
                        .shape = {span.end - span.begin, 1, 1, 1},
                        .role = Role::kGradient,
                        .offset = static_cast<std::size_t>(span.begin) * sizeof(float)}));
  }
  if (pieces.empty()) return;
  UnitCall clear;
  clear.writes = pieces;
  clear.run = [pieces](const UnitRun& run) {
    if (run.memory.gradient_mode == GradientMode::kAccumulate) return;
    for (const TensorId piece : pieces) run.kernels.fill_zero(run.context, {run.view(piece)});
  };
  site.graph.call(std::move(clear));
}

}  // namespace terrace

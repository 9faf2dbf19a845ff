#include "runtime/model/unit_model.h"

namespace terrace {
namespace {

UnitStep whole(std::vector<UnitAccess> reads, std::vector<UnitAccess> writes, double flops) {
  return {.reads = std::move(reads), .writes = std::move(writes), .flops = flops};
}

void add_head_steps(UnitModel& unit, bool tied) {
  std::vector<UnitAccess> reads = {{Role::kHidden}, {Role::kTokens}};
  if (tied) reads.push_back({Role::kTiedParameters});
  unit.forward = {whole(reads, {{Role::kLosses}}, unit.backward_flops / 3)};
  std::vector<UnitAccess> writes = {{Role::kLosses}, {Role::kHiddenGradientOut}, {Role::kGradient}};
  if (tied) writes.push_back({Role::kTiedGradient});
  reads.push_back({Role::kLossScale});
  unit.backward = {whole(reads, writes, unit.backward_flops)};
}

}  // namespace

void add_whole_steps(UnitModel& unit, bool tied) {
  if (unit.kind == UnitKind::kHead) return add_head_steps(unit, tied);
  if (unit.kind == UnitKind::kEmbedding) {
    unit.forward = {whole({{Role::kTokens}}, {{Role::kHiddenOut}}, unit.forward_flops)};
    return;
  }
  unit.forward = {
      whole({{Role::kHidden}}, {{Role::kHiddenOut}, {Role::kSaved}}, unit.forward_flops)};
  unit.recompute = {whole({{Role::kHidden}}, {{Role::kSaved}}, unit.forward_flops)};
  unit.backward = {whole({{Role::kHidden}, {Role::kSaved}, {Role::kHiddenGradient}},
                         {{Role::kHiddenGradientOut}, {Role::kGradient}}, unit.backward_flops)};
}

}  // namespace terrace

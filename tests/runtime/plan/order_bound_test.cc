#include "runtime/plan/order_bound.h"

#include <gtest/gtest.h>

#include "runtime/step/compile.h"
#include "tests/runtime/step/step_fixture.h"
#include "tests/sanitized.h"

namespace terrace {
namespace {

// Returns a model that needs memory mostly for parameters and gradients of its blocks. Its lower
// blocks may be frozen.
StepModel model_of_large_blocks(std::int64_t frozen_blocks) {
  constexpr std::int64_t kBlocks = 8;
  StepModel model = small_step_model(kBlocks, false);
  model.chunk_elements = 100 * kBlockElements;
  for (std::int64_t b = 1; b <= kBlocks; ++b) {
    ParameterGroup& group = model.groups.at(static_cast<std::size_t>(b));
    group.padded_elements = 200 * kBlockElements;
    if (b <= frozen_blocks) group.frozen_elements = group.padded_elements;
  }
  if (frozen_blocks > 0) {
    ParameterGroup& embedding = model.groups.front();
    embedding.frozen_elements = embedding.padded_elements;
  }
  return model;
}

// Wherever state lives and whatever the budget keeps, no program within the budget moves less.
TEST(OrderBound, NoProgramInMicroBatchMajorOrderMovesLess) {
  int bounds = 0;
  constexpr int kStep = kSanitized ? 5 : 1;  // odd, so that each bit is drawn both ways
  for (int choice = 0; choice < 256; choice += kStep) {
    const StepModel model = model_of_large_blocks(choice / 128 * 5);
    StepPolicy policy;
    policy.unified = choice % 2 == 1;
    policy.micro_batches = 2 + choice / 2 % 2 * 3;
    const Tier away = policy.unified ? Tier::kNvme : Tier::kHost;
    const Tier near = policy.compute_tier();
    const auto home = [&](int bit) { return (choice >> bit) % 2 == 0 ? near : away; };
    for (std::size_t u = 0; u < model.unit_count(); ++u) {
      add_homes(policy, {home(2), home(3), home(4), home(5), (choice >> 6) % 2 == 1});
    }
    const auto tier = static_cast<std::size_t>(near);
    const std::size_t least = least_live_bytes(model, policy).at(tier);
    for (const std::size_t budget : {least, least + least / 10, least + least / 3, 2 * least}) {
      TierBudgets budgets;
      budgets.at(tier) = budget;
      const Program program = compile_step(model, policy, budgets);
      const std::size_t room = program.use_of(near).packed_bytes;  // the least that it needs
      const double bound =
          least_moved_micro_batch_major(model, policy.micro_batches, policy.unified, room);
      if (bound > 0) ++bounds;
      EXPECT_GE(moved_bytes(program), bound) << choice << " " << budget;
    }
  }
  EXPECT_GT(bounds, 20 / kStep);
}

}  // namespace
}  // namespace terrace

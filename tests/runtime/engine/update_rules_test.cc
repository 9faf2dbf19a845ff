#include <gtest/gtest.h>

#include "tests/runtime/engine/resumed_ranks.h"
#include "tests/runtime/temporary_directory.h"

// Properties that training has whatever its update rule. Every rule is tested, also one that is
// added later.
namespace terrace {
namespace {

class UpdateRules : public testing::TestWithParam<const UpdateRule*> {
 protected:
  ModelRuntimeOptions options(DType type = DType::kBF16, std::int32_t micro_batches = 2) const {
    ModelRuntimeOptions options = tiny_options(tiny_model("llama", true, false), type);
    options.placement.micro_batches = micro_batches;
    options.chunk_elements = 8 * kBlockElements;
    options.optimizer.rule = GetParam();
    options.optimizer.numbers = standard_options(*GetParam());
    options.optimizer.numbers.weight_decay = 0.1F;
    return options;
  }
  ModelRuntimeOptions on_drive(ModelRuntimeOptions options, bool unified) const {
    all_on(options, unified, Tier::kNvme);
    options.nvme.directories = {{drive_.path(), std::nullopt}};
    return options;
  }

 private:
  TemporaryDirectory drive_;
};

TEST_P(UpdateRules, Learn) {
  const TrainedRun run = train_tiny(options(), 24);
  EXPECT_LT(run.curve.losses.back(), run.curve.losses.front() - 0.1);
}

// Two rules with the same updates would be one rule.
TEST_P(UpdateRules, HaveACurveOfTheirOwn) {
  const TrainedRun own = train_tiny(options(), kSteps);
  for (const UpdateRule* other : update_rules()) {
    if (other == GetParam()) continue;
    ModelRuntimeOptions with_other = options();
    with_other.optimizer.rule = other;
    with_other.optimizer.numbers = standard_options(*other);
    EXPECT_NE(train_tiny(with_other, kSteps).curve, own.curve) << other->name;
  }
}

TEST_P(UpdateRules, HaveTheSameBitsAtEveryStageInEveryTier) {
  for (const int ranks : {1, 2, 3}) {
    const RankedRun plain = train_ranks(options(), ranks, 0);
    for (const std::int32_t stage : {0, 1, 2, 3}) {
      for (const bool unified : {true, false}) {
        SCOPED_TRACE(fmt::format("{} ranks, stage {}, unified {}", ranks, stage, unified));
        const RankedRun run = train_ranks(on_drive(options(), unified), ranks, stage);
        EXPECT_EQ(run.curves, plain.curves);
        EXPECT_EQ(run.evaluations, plain.evaluations);
        EXPECT_EQ(run.state, plain.state);
      }
    }
  }
}

// A limit that no norm reaches does the same arithmetic, with every update under the next forward.
TEST_P(UpdateRules, MayBeDeferred) {
  ModelRuntimeOptions waiting = options();
  waiting.optimizer.max_grad_norm = 1e30;
  const TrainedRun expected = train_tiny(waiting, kSteps);
  ModelRuntimeOptions at_once = on_drive(waiting, true);
  at_once.optimizer.max_grad_norm = 0;
  EXPECT_EQ(train_tiny(at_once, kSteps).curve, expected.curve);
}

TEST_P(UpdateRules, KeepNarrowSlotsWithTheSameBitsEverywhere) {
  for (const SlotForm form : {SlotForm::kBf16, SlotForm::kInt8}) {
    ModelRuntimeOptions narrow = options();
    narrow.optimizer.slot_form = form;
    const TrainedRun plain = train_tiny(narrow, kSteps);
    const bool rounds = !GetParam()->slots.empty();
    EXPECT_EQ(plain.curve != train_tiny(options(), kSteps).curve, rounds);
    ModelRuntimeOptions elsewhere = on_drive(narrow, false);
    elsewhere.threads = 1;
    elsewhere.update_threads = 2;
    elsewhere.placement.streamed_updates = 0.5;
    EXPECT_EQ(train_tiny(elsewhere, kSteps).curve, plain.curve);
    elsewhere.optimizer.splits_bf16_masters = false;
    EXPECT_EQ(train_tiny(elsewhere, kSteps).curve, plain.curve);
  }
}

// A step has six micro-batches, however many ranks share them: only the sums of gradients over
// ranks have another order. A rule that takes signs turns such a difference into a whole step where
// a number is near zero.
TEST_P(UpdateRules, TrainAlikeOnAnyNumberOfRanks) {
  const RankedRun one = train_ranks(options(DType::kF32, 6), 1, 0);
  for (const int ranks : {2, 3}) {
    const RankedRun run = train_ranks(options(DType::kF32, 6 / ranks), ranks, 2);
    const Distance far = distance(run.curves[0], one.curves[0]);
    EXPECT_LT(far.loss, 1e-5);
    EXPECT_LT(far.norm, 1e-3);
  }
}

TEST_P(UpdateRules, LeaveAStateThatGoesOnOnAnyMesh) {
  const ModelRuntimeOptions four = on_drive(options(DType::kF32, 3), true);
  const RankedRun begun = train_ranks(four, MeshShape{.data = 4}, 3);
  const Resumed same = resume(four, MeshShape{.data = 4}, 3, begun.state);
  EXPECT_EQ(same.state, begun.state);
  struct Mesh {
    MeshShape shape;
    std::int32_t stage;
  };
  for (const Mesh& mesh :
       {Mesh{{.data = 3}, 2}, Mesh{{.tensor = 2}, 0}, Mesh{{.pipeline = 2}, 0}}) {
    const ModelRuntimeOptions elsewhere = options(DType::kF32, 12 / mesh.shape.data);
    const Resumed other = resume(elsewhere, mesh.shape, mesh.stage, begun.state);
    EXPECT_EQ(other.state, begun.state);
    EXPECT_LT(distance(other.curve, same.curve).loss, 1e-5);
    EXPECT_LT(distance(other.curve, same.curve).norm, 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(All, UpdateRules, testing::ValuesIn(update_rules()),
                         [](const auto& instance) { return std::string(instance.param->name); });

}  // namespace
}  // namespace terrace

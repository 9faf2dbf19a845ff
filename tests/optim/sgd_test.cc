#include <gtest/gtest.h>

#include <cmath>

#include "optim/rules/rules.h"
#include "tests/optim/rule_state.h"

// SGD's numbers against torch's are in torch_test.cc.
namespace terrace {
namespace {

using test::ParameterKind;
using test::UpdateState;

const UpdateRule& sgd() { return update_rule<rules::Sgd>(); }

// The sequence of optim/rules/sgd.inl by hand, for numbers that are exact in fp32 at every step.
TEST(SgdReference, FollowsTheWrittenSequence) {
  UpdateState state(sgd(), 1, 0, ParameterKind::kF32);
  state.gradient.elements()[0] = 8;
  state.master.elements()[0] = 2;
  state.slots[0].elements()[0] = 3;
  const StepScalars scalars = {.learning_rate = 0.25F, .gradient_scale = 0.5F};
  sgd().reference(state.update({{0.5F}, 0.5F}, scalars));
  // g = 4 + 0.5 * 2, b = 1.5 + 5, p = 2 - 0.25 * 6.5
  EXPECT_EQ(state.slots[0].elements()[0], 6.5F);
  EXPECT_EQ(state.master.elements()[0], 0.375F);
  EXPECT_EQ(state.parameter.elements()[0], 0.375F);
}

TEST(SgdReference, TheFirstStepIsByTheGradient) {
  UpdateState state(sgd(), 1, 0, ParameterKind::kMaster);
  state.gradient.elements()[0] = 0.1F;
  state.master.elements()[0] = 1;
  sgd().reference(state.update({{0.9F}, 0}, {.learning_rate = 0.5F}));
  EXPECT_EQ(state.slots[0].elements()[0], 0.1F);
  EXPECT_EQ(state.master.elements()[0], std::fma(-0.5F, 0.1F, 1.0F));
}

// Without momentum it is plain SGD: the number that was kept does not matter.
TEST(SgdReference, WithoutMomentumForgetsWhatItKept) {
  UpdateState state(sgd(), 1, 0, ParameterKind::kMaster);
  state.gradient.elements()[0] = 2;
  state.slots[0].elements()[0] = 100;
  sgd().reference(state.update({{0}, 0}, {.learning_rate = 0.5F}));
  EXPECT_EQ(state.master.elements()[0], -1.0F);
}

}  // namespace
}  // namespace terrace

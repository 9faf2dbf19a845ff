#include "runtime/step/place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "runtime/step/movement.h"
#include "runtime/step/residency.h"
#include "runtime/step/schedule.h"
#include "tests/runtime/step/step_fixture.h"

namespace terrace {
namespace {

StepPolicy policy_with_random_homes(const StepModel& model, std::mt19937& random) {
  StepPolicy policy;
  policy.micro_batches = 1 + static_cast<std::int32_t>(random() % 3);
  policy.unified = random() % 3 == 0;
  policy.updates_wait_for_norm = random() % 2 == 0;
  const auto tier = [&random] { return kTiers.at(random() % kTierCount); };
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    add_homes(policy, {tier(), tier(), tier(), tier(), random() % 2 == 0});
  }
  return policy;
}

std::vector<Task> tasks_of(const StepModel& model, const StepPolicy& policy) {
  return add_recompute(model, policy, schedule_step(model, policy));
}

// Returns the buffers' offsets by name: a program leaves out the buffers that nothing uses.
std::map<std::string, std::size_t> offsets_of(const Program& program) {
  std::map<std::string, std::size_t> offsets;
  for (const Buffer& buffer : program.buffers) offsets[buffer.name] = buffer.offset;
  EXPECT_EQ(offsets.size(), program.buffers.size());
  return offsets;
}

// Returns the same draft with its buffers made in another order and each named by its number.
// `number_of` receives the new number of each buffer.
Draft shuffled(const Draft& draft, std::mt19937& random, std::vector<BufferId>& number_of) {
  number_of.resize(draft.buffers.size());
  std::iota(number_of.begin(), number_of.end(), 0);
  std::ranges::shuffle(number_of, random);
  Draft other = draft;
  for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
    Buffer& buffer = other.buffers.at(static_cast<std::size_t>(number_of[b]));
    buffer = draft.buffers[b];
    buffer.name = std::to_string(number_of[b]);
  }
  for (Load& load : other.loads) {
    for (BufferId* buffer : {&load.target, &load.before}) {
      if (*buffer != kNoBuffer) *buffer = number_of.at(static_cast<std::size_t>(*buffer));
    }
  }
  for (Access& access : other.accesses) {
    access.buffer = number_of.at(static_cast<std::size_t>(access.buffer));
  }
  return other;
}

Program packed(const Draft& draft, const LinearDraft& linear) {
  ArenaPacking packing(draft, linear, nullptr);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) packing.pack(tier);
  return packing.program();
}

// A rewritten pass may make its buffers in another order: each use of a buffer must still find it
// in the same place.
TEST(Place, DoesNotDependOnTheOrderInWhichBuffersAreMade) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const StepModel model = small_step_model(1 + round % 4, round % 2 == 0);
    const StepPolicy policy = policy_with_random_homes(model, random);
    const std::vector<Task> tasks = tasks_of(model, policy);
    const auto count = static_cast<std::int32_t>(tasks.size());
    Draft draft = add_movement(model, policy, tasks);
    for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
      draft.buffers[b].name = std::to_string(b);
    }
    const FetchPlan plan = FetchPlanner(model, policy, tasks, draft).plan({}, policy.lookahead);
    std::vector<BufferId> number_of;
    const Draft other = shuffled(draft, random, number_of);
    const LinearDraft linear = linearize(draft, count, plan);
    const Program program = packed(draft, linear);
    const Program of_other = packed(other, linearize(other, count, plan));
    EXPECT_EQ(program.use, of_other.use);
    const std::map<std::string, std::size_t> offsets = offsets_of(program);
    const std::map<std::string, std::size_t> of_others = offsets_of(of_other);
    EXPECT_EQ(offsets.size(), of_others.size());
    for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
      if (linear.uses[b].first < 0) continue;
      EXPECT_EQ(offsets.at(std::to_string(b)), of_others.at(std::to_string(number_of[b]))) << b;
    }
  }
}

}  // namespace
}  // namespace terrace

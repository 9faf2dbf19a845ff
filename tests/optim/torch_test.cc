#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "memory/host/worker_arena.h"
#include "optim/update_rules.h"
#include "tests/optim/rule_state.h"

// Compares updates with the classes of torch.optim that have the same names. Those computed
// torch/trajectories.txt in fp64.
namespace terrace {
namespace {

using test::ParameterKind;
using test::UpdateState;

struct Trajectory {
  struct Step {
    std::vector<float> gradient;
    std::vector<double> parameter;
  };
  struct KeptSlot {
    std::string name;
    std::vector<double> numbers;
  };

  const UpdateRule* rule = nullptr;
  float learning_rate = 0;
  RuleOptions options;
  std::vector<float> start;
  std::vector<Step> steps;
  std::vector<KeptSlot> slots;
};

template <typename T>
std::vector<T> read_numbers(std::istream& line, std::size_t count) {
  std::vector<T> numbers(count);
  for (T& number : numbers) {
    double read = 0;
    line >> read;
    number = static_cast<T>(read);
  }
  return numbers;
}

Trajectory begun_by(std::istream& line, std::size_t& elements) {
  std::string name;
  std::size_t steps = 0;
  Trajectory trajectory;
  line >> name >> steps >> elements;
  line >> trajectory.learning_rate >> trajectory.options.weight_decay;
  trajectory.rule = find_update_rule(name);
  if (trajectory.rule == nullptr) throw std::runtime_error("no rule " + name);
  for (std::size_t i = 0; i < trajectory.rule->hyperparameters.size(); ++i) {
    line >> trajectory.options.values.at(i);
  }
  return trajectory;
}

std::vector<Trajectory> read_trajectories() {
  std::ifstream file(TERRACE_TORCH_TRAJECTORIES);
  std::vector<Trajectory> all;
  std::size_t elements = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    line >> word;
    if (word == "case") {
      all.push_back(begun_by(line, elements));
    } else if (word == "start") {
      all.back().start = read_numbers<float>(line, elements);
    } else if (word == "step") {
      all.back().steps.push_back(
          {read_numbers<float>(line, elements), read_numbers<double>(line, elements)});
    } else if (word == "slot") {
      Trajectory::KeptSlot slot;
      line >> slot.name;
      slot.numbers = read_numbers<double>(line, elements);
      all.back().slots.push_back(slot);
    }
    if (line.fail()) throw std::runtime_error("cannot read: " + text);
  }
  return all;
}

// Returns how far an element may be from torch's after each step. It is told of a step before the
// step happens.
using ErrorBound = std::function<double(std::size_t element, double gradient)>;

void expect_follows(const Trajectory& trajectory, UpdateState& state, const ErrorBound& bound) {
  WorkerArena workers(1);
  KernelContext context;
  context.workers = &workers;
  std::ranges::copy(trajectory.start, state.master.elements().begin());
  for (std::size_t t = 0; t < trajectory.steps.size(); ++t) {
    const Trajectory::Step& step = trajectory.steps[t];
    std::ranges::copy(step.gradient, state.gradient.elements().begin());
    const auto updates = static_cast<std::int64_t>(t + 1);
    const StepScalars scalars = {.learning_rate = trajectory.learning_rate,
                                 .of_rule = trajectory.rule->step_scalars(
                                     trajectory.options, updates, trajectory.learning_rate)};
    trajectory.rule->cpu(context, state.update(trajectory.options, scalars));
    for (std::size_t i = 0; i < step.parameter.size(); ++i) {
      const double allowed = bound(i, step.gradient[i]);
      ASSERT_LT(allowed, 1e-4);
      ASSERT_NEAR(state.master.elements()[i], step.parameter[i], allowed)
          << "step " << t + 1 << " element " << i;
    }
  }
  const double moved = std::abs(double{state.master.elements()[0]} - double{trajectory.start[0]});
  EXPECT_GT(moved, 0.05);
}

// Expects the slots to have torch's names and numbers. Relative to the numbers' sizes they are as
// exact as 40 steps of rounding.
void expect_same_slots(const Trajectory& trajectory, UpdateState& state, double bound) {
  ASSERT_EQ(trajectory.slots.size(), trajectory.rule->slots.size());
  for (std::size_t s = 0; s < trajectory.slots.size(); ++s) {
    const Trajectory::KeptSlot& kept = trajectory.slots[s];
    EXPECT_EQ(kept.name, trajectory.rule->slots[s].name);
    for (std::size_t i = 0; i < kept.numbers.size(); ++i) {
      EXPECT_NEAR(state.slots.at(s).elements()[i], kept.numbers[i], bound) << kept.name << " " << i;
    }
  }
}

constexpr double kUnit = 0x1.0p-24;

// Uses the bound that adamw_test.cc derives, for gradients of a size in [1/2, 1] and the same
// betas. There the moments are within 13u and 23u.
void expect_adamw(const Trajectory& trajectory) {
  UpdateState state(*trajectory.rule, std::ssize(trajectory.start), 0, ParameterKind::kMaster);
  std::vector<double> steps(trajectory.start.size(), 0);
  expect_follows(trajectory, state, [&](std::size_t i, double /*gradient*/) {
    ++steps[i];
    constexpr double kLargest = 1;  // of the parameters
    return kUnit * steps[i] * (2 * kLargest + 153 * double{trajectory.learning_rate});
  });
  for (const float p : state.master.elements()) EXPECT_LT(std::abs(p), 1);
  expect_same_slots(trajectory, state, 23 * kUnit);
}

// A rounded result is within u of itself. So with errors e, which on the right are from before the
// step: e(g') = wd e(p) + u |g'|, e(b) = momentum e(b) + e(g') + u |b|, e(p) = e(p) + lr e(b) + u
// |p|.
void expect_sgd(const Trajectory& trajectory) {
  struct Errors {
    double b = 0, p = 0;
  };
  const double momentum = trajectory.options.values[0];
  const double decay = trajectory.options.weight_decay;
  UpdateState state(*trajectory.rule, std::ssize(trajectory.start), 0, ParameterKind::kMaster);
  std::vector<Errors> errors(trajectory.start.size());
  std::vector<double> before(trajectory.start.begin(), trajectory.start.end());
  expect_follows(trajectory, state, [&](std::size_t i, double gradient) {
    const double b = std::abs(state.slots[0].elements()[i]);
    const double p = state.master.elements()[i];
    const double whole = (std::abs(gradient) + decay * std::abs(before[i])) * (1 + kUnit);
    before[i] = p;
    Errors& e = errors[i];
    e.b = momentum * e.b + decay * e.p + kUnit * whole + kUnit * b;
    e.p += double{trajectory.learning_rate} * e.b + kUnit * std::abs(p);
    return e.p;
  });
  double largest = 0;
  for (const Errors& e : errors) largest = std::max(largest, e.b);
  expect_same_slots(trajectory, state, largest);
}

const UpdateRule& torch_adamw() {
  return **std::ranges::find(update_rules_for_trainers(), "torch_adamw", &UpdateRule::name);
}

// tests/python compares its bits; here it runs on every processor's instructions.
TEST(AgainstTorch, TorchAdamWFollowsAdamW) {
  int followed = 0;
  for (Trajectory& trajectory : read_trajectories()) {
    if (trajectory.rule->name != "adamw") continue;
    trajectory.rule = &torch_adamw();
    expect_adamw(trajectory);
    ++followed;
  }
  EXPECT_EQ(followed, 2);
}

TEST(AgainstTorch, UpdatesFollowTheClassOfTheirName) {
  const std::vector<Trajectory> all = read_trajectories();
  ASSERT_EQ(all.size(), 4U);
  for (const Trajectory& trajectory : all) {
    SCOPED_TRACE(std::string(trajectory.rule->name) + ", decay " +
                 std::to_string(trajectory.options.weight_decay));
    ASSERT_EQ(trajectory.steps.size(), 40U);
    trajectory.rule->name == "sgd" ? expect_sgd(trajectory) : expect_adamw(trajectory);
  }
}

}  // namespace
}  // namespace terrace

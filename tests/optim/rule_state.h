#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/half.h"
#include "optim/update_rule.h"

namespace terrace::test {

inline RuleOptions decaying_options(const UpdateRule& rule) {
  RuleOptions options = standard_options(rule);
  options.weight_decay = 0.1F;
  return options;
}

// Returns the scalars of a run's second update.
inline StepScalars second_scalars(const UpdateRule& rule) {
  return {.learning_rate = 3e-3F,
          .gradient_scale = 0.37F,
          .of_rule = rule.step_scalars(standard_options(rule), 2, 3e-3),
          .step = 2};
}

enum class ParameterKind : std::uint8_t { kBf16, kFp16, kF32, kMaster, kSplit };
inline constexpr ParameterKind kParameterKinds[] = {ParameterKind::kBf16, ParameterKind::kFp16,
                                                    ParameterKind::kF32, ParameterKind::kMaster,
                                                    ParameterKind::kSplit};

// n elements that begin `offset` elements past a 64-byte boundary and end where the memory does.
template <typename T>
class OffsetArray {
 public:
  OffsetArray(std::int64_t n, std::int64_t offset)
      : storage_(static_cast<std::size_t>(n + offset) + 64 / sizeof(T)) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    const std::size_t aligned = (64 - address % 64) % 64 / sizeof(T);
    elements_ = std::span(storage_).subspan(aligned + static_cast<std::size_t>(offset),
                                            static_cast<std::size_t>(n));
  }
  OffsetArray(const OffsetArray&) = delete;
  OffsetArray& operator=(const OffsetArray&) = delete;

  std::span<T> elements() { return elements_; }

 private:
  std::vector<T> storage_;
  std::span<T> elements_;
};

// The arrays that an update by a rule works on, with slots in fp32.
struct UpdateState {
  UpdateState(const UpdateRule& of_rule, std::int64_t n, std::int64_t offset,
              ParameterKind parameter_kind)
      : rule(of_rule),
        gradient(n, offset),
        master(n, offset),
        slots{{{n, offset}, {n, offset}}},
        parameter(n, offset),
        half_parameter(n, offset),
        fp16_parameter(n, offset),
        remainder(n, offset),
        kind(parameter_kind) {}

  ParameterUpdate update(const RuleOptions& options, const StepScalars& scalars) {
    ParameterUpdate update;
    update.gradient = view(gradient.elements());
    update.master =
        kind == ParameterKind::kSplit ? view(remainder.elements()) : view(master.elements());
    for (std::size_t s = 0; s < rule.slots.size(); ++s) {
      update.slots.at(s) = view(slots.at(s).elements());
    }
    update.parameter = kind == ParameterKind::kMaster ? update.master
                       : kind == ParameterKind::kF32  ? view(parameter.elements())
                       : kind == ParameterKind::kFp16 ? view(fp16_parameter.elements())
                                                      : view(half_parameter.elements());
    update.options = options;
    update.scalars = &scalars;
    return update;
  }
  // Returns an update with decaying_options().
  ParameterUpdate update(const StepScalars& scalars) {
    return update(decaying_options(rule), scalars);
  }

  const UpdateRule& rule;
  OffsetArray<float> gradient, master;
  std::array<OffsetArray<float>, kMostSlots> slots;  // slots past the rule's are left alone
  OffsetArray<float> parameter;
  OffsetArray<Bf16> half_parameter;
  OffsetArray<Fp16> fp16_parameter;
  OffsetArray<std::int16_t> remainder;
  ParameterKind kind;
};

// Returns the first element whose bits differ, or -1.
template <typename T>
std::int64_t first_difference(OffsetArray<T>& a, OffsetArray<T>& b) {
  for (std::size_t i = 0; i < a.elements().size(); ++i) {
    if (std::memcmp(&a.elements()[i], &b.elements()[i], sizeof(T)) != 0) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

// Fills a state with ordinary training values, and now and then a zero, a denormal, a huge number
// or a tiny one. Slots without a sign are not negative.
inline void fill_state(UpdateState& state, unsigned seed) {
  std::mt19937 random(seed);
  const auto unit = [&] { return static_cast<float>(random() >> 8) * 0x1.0p-23F - 1.0F; };
  constexpr float kOdd[] = {0.0F, -0.0F, 1e-45F, -3e-40F, 1e-38F, 1e-30F, 1e15F, -3e18F, 1e25F};
  const auto draw = [&](float scale) {
    return random() % 16 == 0 ? kOdd[random() % std::size(kOdd)] : scale * unit();
  };
  for (std::size_t i = 0; i < state.master.elements().size(); ++i) {
    state.gradient.elements()[i] = draw(0.1F);
    state.master.elements()[i] = draw(1.0F);
    for (std::size_t s = 0; s < kMostSlots; ++s) {
      const float number = draw(s == 0 ? 0.01F : 1e-4F);
      const bool has_sign = s < state.rule.slots.size() && state.rule.slots[s].has_sign;
      state.slots.at(s).elements()[i] = has_sign ? number : std::abs(number);
    }
    const SplitFloat parts = split(state.master.elements()[i]);
    state.half_parameter.elements()[i] = parts.high;
    state.remainder.elements()[i] = parts.remainder;
    state.fp16_parameter.elements()[i] = to_parameter<Fp16>(state.master.elements()[i]);
  }
}

inline void expect_same_bits(UpdateState& state, UpdateState& expected) {
  EXPECT_EQ(first_difference(state.gradient, expected.gradient), -1);
  EXPECT_EQ(first_difference(state.master, expected.master), -1);
  for (std::size_t s = 0; s < kMostSlots; ++s) {
    EXPECT_EQ(first_difference(state.slots.at(s), expected.slots.at(s)), -1);
  }
  EXPECT_EQ(first_difference(state.parameter, expected.parameter), -1);
  EXPECT_EQ(first_difference(state.half_parameter, expected.half_parameter), -1);
  EXPECT_EQ(first_difference(state.fp16_parameter, expected.fp16_parameter), -1);
  EXPECT_EQ(first_difference(state.remainder, expected.remainder), -1);
}

// Names of tests that are run for every rule: alone, and with a ParameterKind and a shape.
struct RuleName {
  template <typename Param>
  std::string operator()(const Param& param) const {
    return std::string(param.param->name);
  }
};

struct ShapeName {
  template <typename Param>
  std::string operator()(const Param& param) const {
    constexpr const char* kKinds[] = {"bf16", "fp16", "fp32", "master", "split"};
    const auto& [rule, kind, shape] = param.param;
    return std::string(rule->name) + "_" + kKinds[static_cast<std::size_t>(kind)] + "_" +
           std::to_string(shape.n) + "_at_" + std::to_string(shape.offset);
  }
};

}  // namespace terrace::test

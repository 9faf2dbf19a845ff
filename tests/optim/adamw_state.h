#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <vector>

#include "base/half.h"
#include "optim/adamw.h"

namespace terrace::test {

// A step in the middle of a training.
inline constexpr AdamWOptions kAdamWOptions = {
    .beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .weight_decay = 0.1F};
inline constexpr StepScalars kAdamWScalars = {
    .learning_rate = 3e-3F,
    .gradient_scale = 0.37F,
    .of_rule = {0.19F, 0.0975F},
};

enum class ParameterKind : std::uint8_t { kBf16, kFp16, kF32, kMaster, kSplit };

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

// What an AdamW update works on.
struct AdamWState {
  AdamWState(std::int64_t n, std::int64_t offset, ParameterKind parameter_kind)
      : gradient(n, offset),
        master(n, offset),
        moment1(n, offset),
        moment2(n, offset),
        parameter(n, offset),
        half_parameter(n, offset),
        fp16_parameter(n, offset),
        remainder(n, offset),
        kind(parameter_kind) {}

  ParameterUpdate update(const AdamWOptions& options, const StepScalars& scalars) {
    ParameterUpdate update;
    update.gradient = view(gradient.elements());
    update.master =
        kind == ParameterKind::kSplit ? view(remainder.elements()) : view(master.elements());
    update.slots[0] = view(moment1.elements());
    update.slots[1] = view(moment2.elements());
    update.parameter = kind == ParameterKind::kMaster ? update.master
                       : kind == ParameterKind::kF32  ? view(parameter.elements())
                       : kind == ParameterKind::kFp16 ? view(fp16_parameter.elements())
                                                      : view(half_parameter.elements());
    update.options = options;
    update.scalars = &scalars;
    return update;
  }

  OffsetArray<float> gradient, master, moment1, moment2, parameter;
  OffsetArray<Bf16> half_parameter;
  OffsetArray<Fp16> fp16_parameter;
  OffsetArray<std::int16_t> remainder;
  ParameterKind kind;
};

// The first element whose bits differ, or -1.
template <typename T>
std::int64_t first_difference(OffsetArray<T>& a, OffsetArray<T>& b) {
  for (std::size_t i = 0; i < a.elements().size(); ++i) {
    if (std::memcmp(&a.elements()[i], &b.elements()[i], sizeof(T)) != 0) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

// Ordinary training values, and now and then a zero, a denormal, a huge number or a tiny one; the
// second moment is not negative.
inline void fill_state(AdamWState& state, unsigned seed) {
  std::mt19937 random(seed);
  const auto unit = [&] { return static_cast<float>(random() >> 8) * 0x1.0p-23F - 1.0F; };
  constexpr float kOdd[] = {0.0F, -0.0F, 1e-45F, -3e-40F, 1e-38F, 1e-30F, 1e15F, -3e18F, 1e25F};
  const auto draw = [&](float scale) {
    return random() % 16 == 0 ? kOdd[random() % std::size(kOdd)] : scale * unit();
  };
  for (std::size_t i = 0; i < state.master.elements().size(); ++i) {
    state.gradient.elements()[i] = draw(0.1F);
    state.master.elements()[i] = draw(1.0F);
    state.moment1.elements()[i] = draw(0.01F);
    state.moment2.elements()[i] = std::abs(draw(1e-4F));
    const SplitFloat parts = split(state.master.elements()[i]);
    state.half_parameter.elements()[i] = parts.high;
    state.remainder.elements()[i] = parts.remainder;
    state.fp16_parameter.elements()[i] = to_parameter<Fp16>(state.master.elements()[i]);
  }
}

inline void expect_same_bits(AdamWState& state, AdamWState& expected) {
  EXPECT_EQ(first_difference(state.gradient, expected.gradient), -1);
  EXPECT_EQ(first_difference(state.master, expected.master), -1);
  EXPECT_EQ(first_difference(state.moment1, expected.moment1), -1);
  EXPECT_EQ(first_difference(state.moment2, expected.moment2), -1);
  EXPECT_EQ(first_difference(state.parameter, expected.parameter), -1);
  EXPECT_EQ(first_difference(state.half_parameter, expected.half_parameter), -1);
  EXPECT_EQ(first_difference(state.fp16_parameter, expected.fp16_parameter), -1);
  EXPECT_EQ(first_difference(state.remainder, expected.remainder), -1);
}

}  // namespace terrace::test

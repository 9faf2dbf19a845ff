#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "optim/update_state.h"
#include "tests/optim/rule_state.h"

// Updates with slots in 16 and 8 bits, for tests.
namespace terrace::test {

struct Form {
  const char* name;
  StateFormat format;
  DType parameter;
};

inline constexpr Form kForms[] = {
    {"split_bf16", {MasterForm::kSplit, SlotForm::kBf16}, DType::kBF16},
    {"split_int8", {MasterForm::kSplit, SlotForm::kInt8}, DType::kBF16},
    {"whole_bf16", {MasterForm::kFp32, SlotForm::kBf16}, DType::kBF16},
    {"whole_int8", {MasterForm::kFp32, SlotForm::kInt8}, DType::kBF16},
    {"fp16_bf16", {MasterForm::kFp32, SlotForm::kBf16}, DType::kF16},
    {"fp16_int8", {MasterForm::kFp32, SlotForm::kInt8}, DType::kF16},
    {"fp32_bf16", {MasterForm::kParameter, SlotForm::kBf16}, DType::kF32},
    {"fp32_int8", {MasterForm::kParameter, SlotForm::kInt8}, DType::kF32},
};

// The name of a test that is run for every rule and form.
struct RuleAndFormName {
  template <typename Param>
  std::string operator()(const Param& param) const {
    const auto& [rule, form] = param.param;
    return std::string(rule->name) + "_" + form.name;
  }
};

// Parameters and state that start from zeros, and gradients of a step.
struct Training {
  Training(const UpdateRule& rule, const Form& form, std::int64_t elements)
      : rule(rule),
        form(form),
        elements(elements),
        gradient(static_cast<std::size_t>(elements)),
        parameter(static_cast<std::size_t>(elements) * size_of(form.parameter)),
        state(format().bytes(elements)) {}

  StateFormat format() const {
    StateFormat format = form.format;
    format.slot_count = rule.slots.size();
    return format;
  }

  // Returns the update of a step. Its gradients have sizes that differ within a block, zeros, whole
  // blocks of zeros, and tiny ones.
  ParameterUpdate step(std::uint32_t number) {
    std::mt19937 random(number);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float unit = static_cast<float>(random() >> 8) * 0x1.0p-23F - 1.0F;
      const float size = std::exp2(-static_cast<float>(random() % 12));
      const bool is_zero = i / 256 % 7 == 3 || random() % 9 == 0;
      gradient[i] = is_zero ? 0.0F : i / 256 % 7 == 5 ? unit * 1e-22F : unit * size;
    }
    scalars.step = number;
    scalars.learning_rate = 1e-2F;
    scalars.of_rule = rule.step_scalars(standard_options(rule), number, 1e-2);
    ParameterUpdate update;
    update.gradient = view(std::span(gradient));
    update.parameter = view(parameter.data(), form.parameter, elements);
    set_state_views(update, format(), state.data(), elements);
    update.options = decaying_options(rule);
    update.decayed_elements = elements / 2 + 77;
    update.scalars = &scalars;
    update.rounding = {.seed = 42, .stream = 7, .first_element = 8192};
    return update;
  }

  const UpdateRule& rule;
  Form form;
  std::int64_t elements;
  std::vector<float> gradient;
  std::vector<std::byte> parameter;
  std::vector<std::byte> state;
  StepScalars scalars;
};

// Returns the update of a step whose gradients go from tiny ones, blocks of which have the lowest
// exponents, to infinity and NaN, blocks of which have the highest.
inline ParameterUpdate step_to_the_ends_of_the_range(Training& training, std::uint32_t number) {
  const ParameterUpdate update = training.step(number);
  const auto all_bits = std::bit_cast<float>(0xffffffffU);
  const float sizes[] = {1e-30F, 1e17F, 1.1e18F, 2e19F, 3e38F, -HUGE_VALF, NAN, -NAN, all_bits};
  for (std::size_t i = 0; i < training.gradient.size(); i += 3) {
    training.gradient[i] = sizes[i / kMomentBlock % std::size(sizes)];
  }
  return update;
}

// Returns the update of a training with int8 slots, which have every code in a block, under
// exponents of the whole range.
inline ParameterUpdate step_from_every_code(Training& training) {
  constexpr std::uint8_t kExponents[] = {0, 32, 33, 127, 245, 246};
  const ParameterUpdate update = training.step(1);
  std::ranges::fill(training.gradient, 0.0F);
  for (std::int64_t i = 0; i < training.elements; ++i) {
    const std::int64_t block = i / kMomentBlock;
    const std::uint8_t exponent = kExponents[block % std::ssize(kExponents)];
    const auto code = static_cast<std::uint8_t>(exponent == 0 ? 0 : i % kMomentBlock);
    for (std::size_t s = 0; s < training.rule.slots.size(); ++s) {
      codes_of(update.exponents.at(s))[block] = exponent;
      codes_of(update.slots.at(s))[i] = code;
    }
  }
  return update;
}

}  // namespace terrace::test

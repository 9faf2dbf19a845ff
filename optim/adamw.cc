#include "optim/adamw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/half.h"
#include "optim/adamw_element.h"

namespace terrace {

namespace {

void check_moments(const ParameterUpdate& update) {
  const DType dtype = update.slots[0].dtype;
  TERRACE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kU8);
  TERRACE_CHECK(update.slots[1].dtype == dtype);
  if (dtype == DType::kF32) return;
  TERRACE_CHECK_EQ(update.rounding.first_element % kRoundingGroup, 0);
  if (dtype == DType::kBF16) return;
  const std::int64_t elements = update.gradient.elements();
  TERRACE_CHECK_EQ(elements % kMomentBlock, 0);
  TERRACE_CHECK_EQ(update.exponents[0].elements(), elements / kMomentBlock);
  TERRACE_CHECK_EQ(update.exponents[1].elements(), elements / kMomentBlock);
}

}  // namespace

void check_adamw_update(const ParameterUpdate& update) {
  const std::int64_t elements = update.gradient.elements();
  TERRACE_CHECK(update.scalars != nullptr);
  for (const TensorView* view :
       {&update.master, &update.slots[0], &update.slots[1], &update.parameter}) {
    TERRACE_CHECK_EQ(view->elements(), elements);
  }
  TERRACE_CHECK(update.gradient.dtype == DType::kF32 || update.gradient.dtype == DType::kBF16);
  check_moments(update);
  const bool split = update.master.dtype == DType::kI16;
  TERRACE_CHECK(split || update.master.dtype == DType::kF32);
  const DType parameter = update.parameter.dtype;
  TERRACE_CHECK(parameter == DType::kBF16 ||
                (!split && (parameter == DType::kF32 || parameter == DType::kF16)));
}

void keep_state(const ParameterUpdate& update, std::int64_t begin, std::int64_t end) {
  if (update.master.dtype != DType::kF32 || update.parameter.data == update.master.data) return;
  for (std::int64_t i = begin; i < end; ++i) {
    set_exact_parameter(update, i, exact_parameter(update, i));
  }
}

namespace {

float gradient_of(const ParameterUpdate& update, std::int64_t i) {
  return update.gradient.dtype == DType::kF32 ? update.gradient.as<const float>()[i]
                                              : to_float(update.gradient.as<const Bf16>()[i]);
}

float moment_of(const TensorView& moments, std::int64_t i) {
  return moments.dtype == DType::kF32 ? moments.as<float>()[i] : to_float(moments.as<Bf16>()[i]);
}

void set_moment(const TensorView& moments, std::int64_t i, float value, std::uint32_t random) {
  if (moments.dtype == DType::kF32) {
    moments.as<float>()[i] = value;
  } else {
    moments.as<Bf16>()[i] = to_bf16_stochastic(value, random);
  }
}

std::uint32_t random_for(const ParameterUpdate& update, std::int64_t i) {
  return rounding_bits(update.rounding, update.scalars->step, i);
}

AdamWElement updated_element(const ParameterUpdate& update, std::int64_t i, float m, float v) {
  const AdamWFactors factors = adamw_factors(update, i < update.decayed_elements);
  const AdamWElement next =
      adamw_element(factors, gradient_of(update, i), {exact_parameter(update, i), m, v});
  set_exact_parameter(update, i, next.p);
  return next;
}

void reference_block(const ParameterUpdate& update, std::int64_t first) {
  std::uint8_t* const codes1 = codes_of(update.slots[0]) + first;
  std::uint8_t* const codes2 = codes_of(update.slots[1]) + first;
  std::uint8_t& exponent1 = codes_of(update.exponents[0])[first / kMomentBlock];
  std::uint8_t& exponent2 = codes_of(update.exponents[1])[first / kMomentBlock];
  std::array<AdamWElement, kMomentBlock> next;
  std::uint32_t largest1 = 0;
  std::uint32_t largest2 = 0;
  for (std::size_t i = 0; i < next.size(); ++i) {
    next[i] =
        updated_element(update, first + static_cast<std::int64_t>(i),
                        decode_moment1(codes1[i], exponent1), decode_moment2(codes2[i], exponent2));
    largest1 = std::max(largest1, std::bit_cast<std::uint32_t>(next[i].m) & 0x7fffffffU);
    largest2 = std::max(largest2, std::bit_cast<std::uint32_t>(next[i].v) & 0x7fffffffU);
  }
  exponent1 = block_exponent(largest1);
  exponent2 = block_exponent(largest2);
  for (std::size_t i = 0; i < next.size(); ++i) {
    const std::uint32_t random = random_for(update, first + static_cast<std::int64_t>(i));
    codes1[i] = encode_moment1(next[i].m, exponent1, dropped_bits_of_moment1(random));
    codes2[i] = encode_moment2(next[i].v, exponent2, dropped_bits_of_moment2(random));
  }
}

}  // namespace

void adamw_reference_range(const ParameterUpdate& update, std::int64_t begin, std::int64_t end) {
  if (update.slots[0].dtype == DType::kU8) {
    for (std::int64_t i = begin; i < end; i += kMomentBlock) reference_block(update, i);
    return;
  }
  const bool rounds = update.slots[0].dtype == DType::kBF16;
  for (std::int64_t i = begin; i < end; ++i) {
    const AdamWElement next =
        updated_element(update, i, moment_of(update.slots[0], i), moment_of(update.slots[1], i));
    const std::uint32_t random = rounds ? random_for(update, i) : 0;
    set_moment(update.slots[0], i, next.m, half_bits_of_moment1(random));
    set_moment(update.slots[1], i, next.v, half_bits_of_moment2(random));
  }
}

void adamw_reference(const ParameterUpdate& update) {
  check_adamw_update(update);
  const std::int64_t elements = update.gradient.elements();
  if (update.scalars->skips != 0) return keep_state(update, 0, elements);
  adamw_reference_range(update, 0, elements);
}

namespace {

std::array<float, kMostRuleScalars> bias_corrections(const RuleOptions& options,
                                                     std::int64_t updates) {
  const auto n = static_cast<double>(updates);
  return {static_cast<float>(1.0 - std::pow(options.values[0], n)),
          static_cast<float>(1.0 - std::pow(options.values[1], n))};
}

constexpr auto kSlots = std::to_array<Slot>({{"exp_avg"}, {"exp_avg_sq", false}});
using Range = Hyperparameter::Range;
constexpr auto kHyperparameters = std::to_array<Hyperparameter>({
    {"adam-beta1", "Of adamw: decay of the first moment (0.9)", 0.9, Range::kFraction},
    {"adam-beta2", "Of adamw: decay of the second moment (0.95)", 0.95, Range::kFraction},
    {"adam-epsilon", "Of adamw: added to the root of the second moment (1e-8)", 1e-8,
     Range::kPositive},
});

}  // namespace

const UpdateRule& adamw_rule() {
  static constexpr UpdateRule kRule = {.name = "adamw",
                                       .slots = kSlots,
                                       .hyperparameters = kHyperparameters,
                                       .step_scalars = &bias_corrections,
                                       .reference = &adamw_reference,
                                       .cpu = &adamw_cpu,
                                       .cpu_range = &adamw_cpu_range};
  return kRule;
}

}  // namespace terrace

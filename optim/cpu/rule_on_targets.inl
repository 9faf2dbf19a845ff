// Compiles a rule of optim/rules for every instruction set, and makes an UpdateRule of it. Included
// by a source that names
//   TERRACE_RULE         the rule's struct
//   TERRACE_RULE_TEXT    the file that it is in
//   HWY_TARGET_INCLUDE   this file, which Highway includes again for each instruction set; so it has
//                        no `#pragma once`
#include <cstdint>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"
#include "optim/reference_update.h"
#include "optim/rules/rules.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "optim/cpu/rule_update.inl"

// The sequences of rules need a fused multiply-add in one rounding. Where the instruction set has
// none, the scalar definition runs, with std::fma.
#undef TERRACE_NATIVE_FMA
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_TARGET == HWY_PPC8 || \
    (HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64)
#define TERRACE_NATIVE_FMA 1
#else
#define TERRACE_NATIVE_FMA 0
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

#if TERRACE_NATIVE_FMA
#include TERRACE_RULE_TEXT
#endif

static void update_range_by_rule(const ParameterUpdate& op, std::int64_t begin, std::int64_t end) {
#if TERRACE_NATIVE_FMA
  update_range<TERRACE_RULE, rules::TERRACE_RULE>(op, begin, end);
#else
  reference_of_range<rules::TERRACE_RULE>(op, begin, end);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {
namespace {

HWY_EXPORT(update_range_by_rule);

void cpu_range(const ParameterUpdate& update, std::int64_t begin, std::int64_t end) {
  TERRACE_CHECK_EQ(begin % kMomentBlock, 0);
  if (update.scalars->skips != 0) return keep_state(update, begin, end);
  HWY_DYNAMIC_DISPATCH(update_range_by_rule)(update, begin, end);
}

void cpu_update(const KernelContext& context, const ParameterUpdate& update) {
  check_update(update, kSlotCount<rules::TERRACE_RULE>);
  for_each_block(context, update.gradient.elements(), kElementBlock,
                 [&](std::int64_t begin, std::int64_t end) { cpu_range(update, begin, end); });
}

}  // namespace

template <>
const UpdateRule& update_rule<rules::TERRACE_RULE>() {
  using Rule = rules::TERRACE_RULE;
  static constexpr UpdateRule kRule = {.name = Rule::kName,
                                       .slots = Rule::kSlots,
                                       .hyperparameters = Rule::kHyperparameters,
                                       .step_scalars = &Rule::step_scalars,
                                       .reference = &reference_update<Rule>,
                                       .cpu = &cpu_update,
                                       .cpu_range = &cpu_range};
  return kRule;
}

}  // namespace terrace
#endif  // HWY_ONCE

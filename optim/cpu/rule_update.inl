// An update by a rule, vector by vector, with the bits of optim/reference_update.h. Included once
// per Highway target, after hwy/foreach_target.h; hence the guard that Highway toggles instead of
// `#pragma once`.
#if defined(TERRACE_OPTIM_CPU_RULE_UPDATE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TERRACE_OPTIM_CPU_RULE_UPDATE_INL
#undef TERRACE_OPTIM_CPU_RULE_UPDATE_INL
#else
#define TERRACE_OPTIM_CPU_RULE_UPDATE_INL
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_vector.inl"
#include "kernels/cpu/philox_vector.inl"
#include "optim/cpu/moment_vector.inl"
#include "optim/cpu/parameter_vector.inl"
#include "optim/cpu/rule_number.inl"
#include "optim/cpu/slot_vector.inl"
#include "optim/reference_update.h"

// An update is one pass over the state: every element is read and written once. Everything that is
// read is fetched ahead and written with ordinary stores, because a non-temporal store to a line
// that was just read is slow. Parameters beside a whole master are never read and bypass the cache.

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

// The factors that all elements of a range share, in vectors, so that the compiler has them in
// registers.
template <typename Rule>
struct RangeFactors {
  HWY_INLINE RangeFactors(const ParameterUpdate& op, bool decays)
      : gradient_scale(number(op.scalars->gradient_scale)),
        decay(number(Rule::decay(*op.scalars, decays ? op.options.weight_decay : 0.0F))),
        of_rule(Rule::factors(Rule::constants(op.options), *op.scalars)) {}

  Number gradient_scale, decay;
  typename Rule::Factors of_rule;
};

// The views that every form of the slots has beside it.
template <typename Gradient, typename Parameters>
struct UpdatedViews {
  const Gradient* gradient;
  Parameters parameters;
};

struct ElementRange {
  std::int64_t begin, end;
};

// Updates one vector of everything.
template <typename Rule, typename Views, typename Slots>
HWY_INLINE void update_vector(const RangeFactors<Rule>& f, const Views& views, Slots& slots,
                              WordVec random, std::int64_t i) {
  const auto& [gradient, parameters] = views;
  Element<kSlotCount<Rule>> element;
  slots.get(element, i);
  element.p = parameters.get(i);
  const Number g = hn::Mul(load(gradient + i), f.gradient_scale);
  Rule::update(f.of_rule, f.decay, g, element);
  slots.set(element, random, i);
  parameters.set(element.p, i);
}

// Updates the whole steps of a range, all of which decays or does not. Returns where they end.
template <typename Rule, typename Views>
HWY_NOINLINE std::int64_t update_steps(const ParameterUpdate& op, const Views& given,
                                       const ElementRange& range) {
  const RangeFactors<Rule> f(op, range.begin < op.decayed_elements);
  const Ahead ahead(op);
  const Views views = given;
  const FloatSlots<kSlotCount<Rule>> slots(op);
  std::int64_t i = range.begin;
  for (; i + kStep <= range.end; i += kStep) {
    fetch_ahead(views.gradient + i, ahead);
    slots.fetch(i, ahead);
    views.parameters.fetch(i, ahead);
    for (std::int64_t j = i; j < i + kStep; j += kLanes) {
      update_vector<Rule>(f, views, slots, hn::Zero(LaneWords()), j);
    }
  }
  return i;
}

// The number of Philox blocks that a group of elements shares: see rounding_bits(). Their four
// words serve a row of elements and, turned by a byte, the next row.
inline constexpr std::int64_t kCounters = 16;
inline constexpr std::int64_t kRow = 4 * kCounters;

HWY_INLINE PhiloxVector numbers_of(const ParameterUpdate& op) {
  return {op.rounding.seed, op.rounding.stream, op.scalars->step};
}

// Calls body(random, i) for every vector of the group that begins at `first`, and fetch(i) before
// each row. If a whole group were fetched at once, there would not be room for all of it on its way
// from memory.
template <typename Fetch, typename Body>
HWY_INLINE void for_each_random(const ParameterUpdate& op, const PhiloxVector& numbers,
                                std::int64_t first, const Fetch& fetch, const Body& body) {
  const auto counter =
      static_cast<std::uint64_t>((op.rounding.first_element + first) / kRoundingGroup * kCounters);
  WordVec row[4][kCounters / kLanes];
  for (std::int64_t part = 0; part < kCounters / kLanes; ++part) {
    WordVec words[4];
    numbers(counter + static_cast<std::uint64_t>(part * kLanes), words);
    for (int word = 0; word < 4; ++word) row[word][part] = words[word];
  }
  for (std::int64_t i = first; i < first + kRoundingGroup;) {
    fetch(i);
    for (auto& parts : row) {
      for (WordVec& random : parts) {
        body(random, i);
        random = hn::RotateRight<8>(random);
        i += kLanes;
      }
    }
  }
}

// Updates the whole groups of a range that begins at a multiple of kRoundingGroup, all of which
// decays or does not. Returns where they end.
template <typename Rule, typename Views>
HWY_NOINLINE std::int64_t update_groups(const ParameterUpdate& op, const Views& given,
                                        const ElementRange& range) {
  const RangeFactors<Rule> f(op, range.begin < op.decayed_elements);
  const PhiloxVector numbers = numbers_of(op);
  const Ahead ahead(op);
  const Views views = given;
  const HalfSlots<kSlotCount<Rule>> slots(op);
  std::int64_t i = range.begin;
  for (; i + kRoundingGroup <= range.end; i += kRoundingGroup) {
    const auto fetch = [&](std::int64_t j) TERRACE_VECTOR_BODY {
      for (std::int64_t step = j; step < j + kRow; step += kStep) {
        fetch_ahead(views.gradient + step, ahead);
        slots.fetch(step, ahead);
        views.parameters.fetch(step, ahead);
      }
    };
    for_each_random(op, numbers, i, fetch, [&](WordVec random, std::int64_t j) TERRACE_VECTOR_BODY {
      update_vector<Rule>(f, views, slots, random, j);
    });
  }
  return i;
}

// Updates whole blocks that all decay or all do not. A block's new slots become codes after the
// update of the next block, so that its exponents, which come last, hold nothing up.
template <typename Rule, typename Views>
HWY_NOINLINE std::int64_t update_blocks(const ParameterUpdate& op, const Views& given,
                                        const ElementRange& range) {
  static_assert(kMomentBlock == kRoundingGroup);
  const RangeFactors<Rule> f(op, range.begin < op.decayed_elements);
  const PhiloxVector numbers = numbers_of(op);
  const Ahead ahead(op);
  const Views views = given;
  NewSlots<kSlotCount<Rule>> waiting[2];
  std::int64_t first = range.begin;
  std::size_t now = 0;
  for (; first + kMomentBlock <= range.end; first += kMomentBlock, now = 1 - now) {
    const auto fetch = [&](std::int64_t i) TERRACE_VECTOR_BODY {
      for (std::int64_t step = i; step < i + kRow; step += kStep) {
        fetch_ahead(views.gradient + step, ahead);
        views.parameters.fetch(step, ahead);
      }
      for_each_slot<kSlotCount<Rule>>([&](auto s) TERRACE_VECTOR_BODY {
        hwy::Prefetch(codes_of(op.slots[s]) + i + ahead.of<std::uint8_t>());
      });
    };
    CodedSlots<Rule> slots(op, first, waiting[now]);
    for_each_random(op, numbers, first, fetch,
                    [&](WordVec random, std::int64_t i)
                        TERRACE_VECTOR_BODY { update_vector<Rule>(f, views, slots, random, i); });
    if (first > range.begin) narrow_block<Rule>(op, waiting[1 - now]);
    slots.finish();
  }
  if (first > range.begin) narrow_block<Rule>(op, waiting[1 - now]);
  return first;
}

// Calls body(views) with the form of the parameters, and the gradient's type.
template <typename Body>
HWY_INLINE std::int64_t with_views(const ParameterUpdate& op, std::int64_t begin,
                                   const Body& body) {
  return with_parameters(op, begin, [&](const auto& parameters) TERRACE_VECTOR_BODY {
    using Parameters = std::remove_cvref_t<decltype(parameters)>;
    if (op.gradient.dtype == DType::kF32) {
      return body(UpdatedViews<float, Parameters>{op.gradient.as<const float>(), parameters});
    }
    return body(UpdatedViews<Bf16, Parameters>{op.gradient.as<const Bf16>(), parameters});
  });
}

// Updates blocks that all decay or all do not.
template <typename Rule>
void update_coded_slots(const ParameterUpdate& op, std::int64_t begin, std::int64_t end) {
  with_views(op, begin, [&](const auto& views) TERRACE_VECTOR_BODY {
    return update_blocks<Rule>(op, views, {begin, end});
  });
}

// Updates elements that all decay or all do not. Returns how far it came.
template <typename Rule>
std::int64_t update_same_decay(const ParameterUpdate& op, std::int64_t begin, std::int64_t end) {
  if (slot_type(op, kSlotCount<Rule>) == DType::kF32) {
    return with_views(op, begin, [&](const auto& views) TERRACE_VECTOR_BODY {
      return update_steps<Rule>(op, views, {begin, end});
    });
  }
  return with_views(op, begin, [&](const auto& views) TERRACE_VECTOR_BODY {
    return update_groups<Rule>(op, views, {begin, end});
  });
}

// Updates the elements [begin, end), as UpdateRule::cpu_range does. Scalar is the same rule for one
// element, which updates any rest that is less than a vector's step.
template <typename Rule, typename Scalar>
void update_range(const ParameterUpdate& op, std::int64_t begin, std::int64_t end) {
  const DType slots = slot_type(op, kSlotCount<Rule>);
  if constexpr (kSlotCount<Rule> > 0) {
    if (slots == DType::kU8) {
      const std::int64_t middle = std::clamp(op.decayed_elements, begin, end);
      const std::int64_t first = middle / kMomentBlock * kMomentBlock;
      const std::int64_t last = (middle + kMomentBlock - 1) / kMomentBlock * kMomentBlock;
      update_coded_slots<Rule>(op, begin, first);
      reference_of_range<Scalar>(op, first, last);  // the block where the decay ends
      update_coded_slots<Rule>(op, last, end);
      return;
    }
  }
  for_each_decay_range(op, begin, end, [&](std::int64_t first, std::int64_t last) {
    std::int64_t aligned = first;
    if (slots == DType::kBF16) {
      aligned = std::min(last, (first + kRoundingGroup - 1) / kRoundingGroup * kRoundingGroup);
      reference_of_range<Scalar>(op, first, aligned);
    }
    reference_of_range<Scalar>(op, update_same_decay<Rule>(op, aligned, last), last);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#endif  // per-target guard

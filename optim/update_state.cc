#include "optim/update_state.h"

#include "base/check.h"

namespace terrace {
namespace {

void check_slots(const ParameterUpdate& update, std::size_t slot_count) {
  const std::int64_t elements = update.gradient.elements();
  const DType dtype = slot_type(update, slot_count);
  TERRACE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kU8);
  for (std::size_t slot = 0; slot < slot_count; ++slot) {
    TERRACE_CHECK_EQ(update.slots.at(slot).elements(), elements);
    TERRACE_CHECK(update.slots.at(slot).dtype == dtype);
  }
  if (dtype == DType::kF32) return;
  TERRACE_CHECK_EQ(update.rounding.first_element % kRoundingGroup, 0);
  if (dtype == DType::kBF16) return;
  TERRACE_CHECK_EQ(elements % kMomentBlock, 0);
  for (std::size_t slot = 0; slot < slot_count; ++slot) {
    TERRACE_CHECK_EQ(update.exponents.at(slot).elements(), elements / kMomentBlock);
  }
}

}  // namespace

void check_update(const ParameterUpdate& update, std::size_t slot_count) {
  const std::int64_t elements = update.gradient.elements();
  TERRACE_CHECK_LE(slot_count, kMostSlots);
  TERRACE_CHECK(update.scalars != nullptr);
  TERRACE_CHECK_EQ(update.master.elements(), elements);
  TERRACE_CHECK_EQ(update.parameter.elements(), elements);
  TERRACE_CHECK(update.gradient.dtype == DType::kF32 || update.gradient.dtype == DType::kBF16);
  check_slots(update, slot_count);
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

}  // namespace terrace

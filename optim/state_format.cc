#include "optim/state_format.h"

#include "base/bytes.h"
#include "base/check.h"
#include "optim/moment_code.h"

namespace terrace {
namespace {

constexpr std::int64_t kElementGrain = 4096;
constexpr std::size_t kByteGrain = 4096;

StatePart append(StateLayout& layout, DType dtype, std::int64_t count) {
  StatePart part;
  part.dtype = dtype;
  part.begin = layout.size_bytes;
  part.size_bytes = static_cast<std::size_t>(count) * size_of(dtype);
  layout.size_bytes = part.end();
  return part;
}

DType type_of(SlotForm form) {
  switch (form) {
    case SlotForm::kFp32:
      return DType::kF32;
    case SlotForm::kBf16:
      return DType::kBF16;
    case SlotForm::kInt8:
      return DType::kU8;
  }
  return DType::kF32;
}

std::int64_t master_count(MasterForm form, std::int64_t elements) {
  return form == MasterForm::kParameter ? 0 : elements;
}

}  // namespace

StateLayout StateFormat::layout(std::int64_t elements) const {
  TERRACE_CHECK_EQ(elements % kElementGrain, 0);
  TERRACE_CHECK_LE(slot_count, kMostSlots);
  const std::int64_t blocks = slot_form == SlotForm::kInt8 ? elements / kMomentBlock : 0;
  StateLayout layout;
  for (std::size_t slot = 0; slot < kMostSlots; ++slot) {
    layout.slots.at(slot) = append(layout, type_of(slot_form), slot < slot_count ? elements : 0);
  }
  layout.master = append(layout, master == MasterForm::kSplit ? DType::kI16 : DType::kF32,
                         master_count(master, elements));
  for (std::size_t slot = 0; slot < kMostSlots; ++slot) {
    layout.exponents.at(slot) = append(layout, DType::kU8, slot < slot_count ? blocks : 0);
  }
  layout.size_bytes = round_up(layout.size_bytes, kByteGrain);
  return layout;
}

}  // namespace terrace

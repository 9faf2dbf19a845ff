#include "optim/state_format.h"

#include "base/check.h"

namespace terrace {
namespace {

constexpr std::int64_t kElementGrain = 4096;

StatePart append(StateLayout& layout, DType dtype, std::int64_t elements) {
  StatePart part;
  part.dtype = dtype;
  part.begin = layout.size_bytes;
  part.size_bytes = static_cast<std::size_t>(elements) * size_of(dtype);
  layout.size_bytes = part.end();
  return part;
}

}  // namespace

StateLayout StateFormat::layout(std::int64_t elements) const {
  TERRACE_CHECK_EQ(elements % kElementGrain, 0);
  StateLayout layout;
  layout.moment1 = append(layout, DType::kF32, elements);
  layout.moment2 = append(layout, DType::kF32, elements);
  layout.master.begin = layout.size_bytes;
  if (master == MasterForm::kSplit) layout.master = append(layout, DType::kI16, elements);
  if (master == MasterForm::kFp32) layout.master = append(layout, DType::kF32, elements);
  return layout;
}

}  // namespace terrace

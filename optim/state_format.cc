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

DType type_of(MomentForm form) {
  switch (form) {
    case MomentForm::kFp32:
      return DType::kF32;
    case MomentForm::kBf16:
      return DType::kBF16;
    case MomentForm::kInt8:
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
  const std::int64_t blocks = moments == MomentForm::kInt8 ? elements / kMomentBlock : 0;
  StateLayout layout;
  layout.moment1 = append(layout, type_of(moments), elements);
  layout.moment2 = append(layout, type_of(moments), elements);
  layout.master = append(layout, master == MasterForm::kSplit ? DType::kI16 : DType::kF32,
                         master_count(master, elements));
  layout.exponents1 = append(layout, DType::kU8, blocks);
  layout.exponents2 = append(layout, DType::kU8, blocks);
  layout.size_bytes = round_up(layout.size_bytes, kByteGrain);
  return layout;
}

}  // namespace terrace

#include "runtime/session/parameter_values.h"

#include "base/half.h"

namespace terrace {

void read_parameter(DType dtype, std::span<const std::byte> parameter, float* master) {
  const std::size_t elements = parameter.size() / size_of(dtype);
  if (dtype == DType::kBF16) {
    const auto* in = reinterpret_cast<const Bf16*>(parameter.data());
    for (std::size_t i = 0; i < elements; ++i) master[i] = to_float(in[i]);
  } else {
    const auto* in = reinterpret_cast<const Fp16*>(parameter.data());
    for (std::size_t i = 0; i < elements; ++i) master[i] = to_float(in[i]);
  }
}

void round_parameter(DType dtype, std::span<std::byte> parameter, const float* master) {
  const std::size_t elements = parameter.size() / size_of(dtype);
  if (dtype == DType::kBF16) {
    auto* out = reinterpret_cast<Bf16*>(parameter.data());
    for (std::size_t i = 0; i < elements; ++i) out[i] = to_parameter<Bf16>(master[i]);
  } else {
    auto* out = reinterpret_cast<Fp16*>(parameter.data());
    for (std::size_t i = 0; i < elements; ++i) out[i] = to_parameter<Fp16>(master[i]);
  }
}

}  // namespace terrace

#include "runtime/session/parameter_values.h"

#include "base/half.h"

namespace terrace {

void read_parameter(const SessionTensor& tensor, const StateChunk& chunk, float* master) {
  if (tensor.dtype == DType::kBF16) {
    const auto* in = reinterpret_cast<const Bf16*>(tensor.data) + chunk.begin;
    for (std::int64_t i = 0; i < chunk.elements; ++i) master[i] = to_float(in[i]);
  } else {
    const auto* in = reinterpret_cast<const Fp16*>(tensor.data) + chunk.begin;
    for (std::int64_t i = 0; i < chunk.elements; ++i) master[i] = to_float(in[i]);
  }
}

// Writes the parameter as an update would, from its master.
void round_parameter(const SessionTensor& tensor, const StateChunk& chunk, const float* master) {
  if (tensor.dtype == DType::kBF16) {
    auto* out = reinterpret_cast<Bf16*>(tensor.data) + chunk.begin;
    for (std::int64_t i = 0; i < chunk.elements; ++i) out[i] = to_parameter<Bf16>(master[i]);
  } else {
    auto* out = reinterpret_cast<Fp16*>(tensor.data) + chunk.begin;
    for (std::int64_t i = 0; i < chunk.elements; ++i) out[i] = to_parameter<Fp16>(master[i]);
  }
}

}  // namespace terrace

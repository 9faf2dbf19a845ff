#include "runtime/checkpoint/weight_types.h"

#include <array>
#include <stdexcept>

#include "base/check.h"

namespace terrace {
namespace {

struct TorchName {
  DType dtype;
  const char* name;
};
constexpr std::array<TorchName, 3> kNames = {
    {{DType::kF32, "float32"}, {DType::kBF16, "bfloat16"}, {DType::kF16, "float16"}}};

}  // namespace

const char* torch_name_of(DType dtype) {
  for (const TorchName& each : kNames) {
    if (each.dtype == dtype) return each.name;
  }
  TERRACE_CHECK(dtype == DType::kF32);
  return "";
}

DType parse_torch_name(const std::string& name) {
  for (const TorchName& each : kNames) {
    if (name == each.name) return each.dtype;
  }
  throw std::invalid_argument(name + " is not a type of weights");
}

}  // namespace terrace

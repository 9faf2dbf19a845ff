#include "kernels/cpu/cpu_arithmetic.h"

#include <fmt/format.h>

#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <utility>

namespace terrace {
namespace {

std::string instruction_set() {
  constexpr auto kNames = std::to_array<std::pair<int, std::string_view>>({
      {dnnl_cpu_isa_sse41, "sse41"},
      {dnnl_cpu_isa_avx, "avx"},
      {dnnl_cpu_isa_avx2, "avx2"},
      {dnnl_cpu_isa_avx2_vnni, "avx2_vnni"},
      {dnnl_cpu_isa_avx512_core, "avx512_core"},
      {dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni"},
      {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
      {dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx"},
  });
  const int used = dnnl_get_effective_cpu_isa();
  for (const auto& [isa, name] : kNames) {
    if (isa == used) return std::string(name);
  }
  return fmt::format("instruction set {:#x}", used);  // newer than this list
}

}  // namespace

std::string cpu_arithmetic() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{} with {}", version.major, version.minor, version.patch,
                     instruction_set());
}

}  // namespace terrace

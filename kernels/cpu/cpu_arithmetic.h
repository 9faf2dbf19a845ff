#pragma once

#include <string>

namespace terrace {

// Returns the library and the instruction set that the bits of products on this processor depend on
// besides the program: "oneDNN 2.6.3 with avx512_core_bf16". DNNL_MAX_CPU_ISA is taken into
// account. Any thread may call it.
std::string cpu_arithmetic();

}  // namespace terrace

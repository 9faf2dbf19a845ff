#pragma once

#include <string>

namespace terrace {

// Returns what the bits of products on this processor depend on beside the program:
// "oneDNN 2.6.3 with avx512_core_bf16". DNNL_MAX_CPU_ISA counts. Any thread.
std::string cpu_arithmetic();

}  // namespace terrace

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

// One single-threaded oneDNN matrix product over strided row-major operands: the only way to
// oneDNN. Letters: c [m,n] = a [m,k] b [k,n] (+ bias [n]).
namespace terrace {

// Everything that may decide which code oneDNN runs: equal shapes give equal bits for equal
// operands.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  // Elements from one stored row to the next.
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  DType input = DType::kF32;   // of a and b
  DType output = DType::kF32;  // of c; sums are fp32 and are rounded once
  DType bias_dtype = DType::kF32;
  bool a_transposed = false;  // a is stored as [k,m]
  bool b_transposed = false;  // b is stored as [n,k]
  bool has_bias = false;      // added to the fp32 sum
  bool accumulate = false;    // c += a b; c is fp32

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }

  friend bool operator==(const GemmShape&, const GemmShape&) = default;
};

// The operands may have any alignment; `scratch` is 64-aligned and has at least gemm_scratch_bytes.
struct GemmOperands {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::byte* c = nullptr;
  const std::byte* bias = nullptr;
  std::span<std::byte> scratch = {};
};

// Returns whether oneDNN multiplies operands of this type on this processor; it takes bf16 only on
// some.
bool gemm_takes(DType input);

// Returns whether oneDNN may use the instruction that multiplies pairs of bf16 (AVX-512 bf16, or
// better): where the processor has it and DNNL_MAX_CPU_ISA does not forbid it.
bool onednn_multiplies_pairs();

// Runs on the calling thread alone. The first call of a shape on a thread compiles code for it;
// later calls find the code in a bounded cache of the thread. Throws DeviceError if oneDNN fails.
void gemm(const GemmShape& shape, const GemmOperands& operands);

// Returns the bytes of scratch memory that gemm needs for the shape on this machine. Throws as gemm
// does.
std::size_t gemm_scratch_bytes(const GemmShape& shape);

}  // namespace terrace

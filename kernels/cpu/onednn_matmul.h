#pragma once

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>

#include "base/check.h"
#include "base/dtype.h"

// How a product is described to oneDNN, and where oneDNN 2 and oneDNN 3 need different calls.
namespace terrace {

inline dnnl::memory::data_type onednn_type(DType dtype) {
  TERRACE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

// Transposed: stored as [columns, rows].
inline dnnl::memory::desc onednn_matrix(std::int64_t rows, std::int64_t columns,
                                        std::int64_t stride, bool transposed, DType dtype) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  return {{rows, columns}, onednn_type(dtype), strides};
}

struct OneDnnMatmul {
  dnnl::memory::desc a, b, c;
  dnnl::memory::desc bias;  // a zero desc: none
};

// Throws dnnl::error.
inline dnnl::matmul::primitive_desc describe_matmul(const OneDnnMatmul& matmul,
                                                    const dnnl::primitive_attr& attributes,
                                                    const dnnl::engine& engine) {
  const bool has_bias = matmul.bias.get_size() > 0;
#if DNNL_VERSION_MAJOR >= 3
  if (!has_bias) return {engine, matmul.a, matmul.b, matmul.c, attributes};
  return {engine, matmul.a, matmul.b, matmul.bias, matmul.c, attributes};
#else
  const dnnl::matmul::desc desc =
      has_bias ? dnnl::matmul::desc(matmul.a, matmul.b, matmul.bias, matmul.c)
               : dnnl::matmul::desc(matmul.a, matmul.b, matmul.c);
  return {desc, attributes, engine};
#endif
}

}  // namespace terrace

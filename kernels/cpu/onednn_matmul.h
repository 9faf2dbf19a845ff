#pragma once

#include <oneapi/dnnl/dnnl.hpp>

// What is said differently to oneDNN 2 and oneDNN 3.
namespace terrace {

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

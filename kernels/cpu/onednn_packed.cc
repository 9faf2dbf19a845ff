#include "kernels/cpu/onednn_packed.h"

#include <fmt/format.h>
#include <omp.h>

#include "base/error.h"
#include "kernels/cpu/onednn_matmul.h"

namespace terrace {
namespace {

dnnl::matmul::primitive_desc describe_packed(const GemmShape& shape, const dnnl::engine& engine) {
  TERRACE_CHECK(!shape.has_bias && !shape.accumulate);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const OneDnnMatmul matmul = {
      .a = onednn_matrix(shape.m, shape.k, shape.a_stride, shape.a_transposed, shape.input),
      .b = {{shape.k, shape.n}, onednn_type(shape.input), dnnl::memory::format_tag::any},
      .c = onednn_matrix(shape.m, shape.n, shape.c_stride, false, shape.output),
      .bias = {}};
  return describe_matmul(matmul, attributes, engine);
}

}  // namespace

class PackedGemm::Impl {
 public:
  Impl(const GemmShape& shape, const std::byte* b)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        desc_(describe_packed(shape, engine_)),
        matmul_(desc_),
        a_(desc_.src_desc(), engine_, DNNL_MEMORY_NONE),
        b_(desc_.weights_desc(), engine_),
        c_(desc_.dst_desc(), engine_, DNNL_MEMORY_NONE),
        scratch_(desc_.scratchpad_desc(), engine_) {
    omp_set_num_threads(1);
    // oneDNN has one pointer type for memory that it reads and memory that it writes.
    dnnl::memory plain(
        onednn_matrix(shape.k, shape.n, shape.b_stride, shape.b_transposed, shape.input), engine_,
        const_cast<std::byte*>(b));
    dnnl::reorder(plain, b_).execute(stream_, plain, b_);
    stream_.wait();
  }

  void run(const std::byte* a, std::byte* c) {
    omp_set_num_threads(1);  // a setting of the calling thread
    a_.set_data_handle(const_cast<std::byte*>(a));
    c_.set_data_handle(c);
    matmul_.execute(stream_, {{DNNL_ARG_SRC, a_},
                              {DNNL_ARG_WEIGHTS, b_},
                              {DNNL_ARG_DST, c_},
                              {DNNL_ARG_SCRATCHPAD, scratch_}});
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul::primitive_desc desc_;
  dnnl::matmul matmul_;
  dnnl::memory a_, b_, c_, scratch_;
};

PackedGemm::PackedGemm(const GemmShape& shape, const std::byte* b) try
    : impl_(std::make_unique<Impl>(shape, b)) {
} catch (const dnnl::error& error) {
  throw DeviceError(fmt::format("oneDNN failed to pack a matrix: {}", error.what()), "");
}

PackedGemm::~PackedGemm() = default;

void PackedGemm::run(const std::byte* a, std::byte* c) {
  try {
    impl_->run(a, c);
  } catch (const dnnl::error& error) {
    throw DeviceError(fmt::format("oneDNN failed on a packed product: {}", error.what()), "");
  }
}

}  // namespace terrace

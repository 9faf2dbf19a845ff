#include "kernels/cpu/onednn_gemm.h"

#include <fmt/format.h>
#include <omp.h>

#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "kernels/cpu/onednn_matmul.h"

namespace terrace {
namespace {

// More shapes than the models, sequence buckets and edge tiles of a process add up to. If the cache
// is full nevertheless, it is emptied: that is slower, but the bits are the same.
constexpr std::size_t kCachedMax = 1024;

struct GemmShapeHash {
  std::size_t operator()(const GemmShape& shape) const {
    std::uint64_t hash = 0;
    const auto mix = [&hash](std::int64_t value) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 29;
    };
    for (const std::int64_t value :
         {shape.m, shape.n, shape.k, shape.a_stride, shape.b_stride, shape.c_stride}) {
      mix(value);
    }
    mix(static_cast<std::int64_t>(shape.input) | static_cast<std::int64_t>(shape.output) << 8 |
        static_cast<std::int64_t>(shape.bias_dtype) << 16 | std::int64_t{shape.a_transposed} << 24 |
        std::int64_t{shape.b_transposed} << 25 | std::int64_t{shape.has_bias} << 26 |
        std::int64_t{shape.accumulate} << 27);
    return static_cast<std::size_t>(hash);
  }
};

dnnl::matmul::primitive_desc describe(const GemmShape& shape, const dnnl::engine& engine) {
  TERRACE_CHECK(!shape.accumulate || shape.output == DType::kF32);
  const auto a = onednn_matrix(shape.m, shape.k, shape.a_stride, shape.a_transposed, shape.input);
  const auto b = onednn_matrix(shape.k, shape.n, shape.b_stride, shape.b_transposed, shape.input);
  const auto c = onednn_matrix(shape.m, shape.n, shape.c_stride, false, shape.output);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.accumulate) {
    dnnl::post_ops post;
    post.append_sum(1.0F);
    attributes.set_post_ops(post);
  }
  OneDnnMatmul matmul = {.a = a, .b = b, .c = c, .bias = {}};
  if (shape.has_bias) {
    matmul.bias = {{1, shape.n}, onednn_type(shape.bias_dtype), dnnl::memory::dims{shape.n, 1}};
  }
  return describe_matmul(matmul, attributes, engine);
}

// A compiled product with its memory objects, whose addresses are set at each call.
class CompiledGemm {
 public:
  CompiledGemm(const GemmShape& shape, const dnnl::engine& engine)
      : CompiledGemm(describe(shape, engine), engine, shape.has_bias) {}

  void run(const GemmOperands& operands, dnnl::stream& stream) {
    TERRACE_CHECK_LE(scratch_bytes_, operands.scratch.size());
    set(DNNL_ARG_SRC, operands.a);
    set(DNNL_ARG_WEIGHTS, operands.b);
    set(DNNL_ARG_DST, operands.c);
    if (has_bias_) set(DNNL_ARG_BIAS, operands.bias);
    if (scratch_bytes_ > 0) set(DNNL_ARG_SCRATCHPAD, operands.scratch.data());
    primitive_.execute(stream, arguments_);
  }

 private:
  CompiledGemm(const dnnl::matmul::primitive_desc& desc, const dnnl::engine& engine, bool has_bias)
      : primitive_(desc), scratch_bytes_(desc.scratchpad_desc().get_size()), has_bias_(has_bias) {
    add(DNNL_ARG_SRC, desc.src_desc(), engine);
    add(DNNL_ARG_WEIGHTS, desc.weights_desc(), engine);
    add(DNNL_ARG_DST, desc.dst_desc(), engine);
    if (has_bias_) add(DNNL_ARG_BIAS, desc.bias_desc(), engine);
    if (scratch_bytes_ > 0) add(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), engine);
  }

  void add(int argument, const dnnl::memory::desc& desc, const dnnl::engine& engine) {
    arguments_.emplace(argument, dnnl::memory(desc, engine, DNNL_MEMORY_NONE));
  }
  // oneDNN has one pointer type for memory that it reads and memory that it writes.
  void set(int argument, const std::byte* data) {
    arguments_.at(argument).set_data_handle(const_cast<std::byte*>(data));
  }

  dnnl::matmul primitive_;
  std::size_t scratch_bytes_;
  bool has_bias_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// The compiled products that a thread keeps between calls. It is a cache of pure functions of the
// shape: no result depends on what is in it. It belongs to the thread because the memory objects
// above carry the addresses of a call, and because OpenMP's thread count, which must be one, is a
// setting of the calling thread.
class ThreadGemms {
 public:
  ThreadGemms() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) { omp_set_num_threads(1); }

  void run(const GemmShape& shape, const GemmOperands& operands) {
    auto found = compiled_.find(shape);
    if (found == compiled_.end()) {
      if (compiled_.size() >= kCachedMax) compiled_.clear();
      found = compiled_.emplace(shape, CompiledGemm(shape, engine_)).first;
    }
    found->second.run(operands, stream_);
  }

  std::size_t scratch_bytes(const GemmShape& shape) const {
    return describe(shape, engine_).scratchpad_desc().get_size();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<GemmShape, CompiledGemm, GemmShapeHash> compiled_;
};

ThreadGemms& thread_gemms() {
  static thread_local ThreadGemms gemms;
  return gemms;
}

[[noreturn]] void throw_failure(const GemmShape& shape, const dnnl::error& error) {
  throw DeviceError(fmt::format("oneDNN failed on a {} matrix product of {} x {} x {}: {}",
                                name_of(shape.input), shape.m, shape.k, shape.n, error.what()),
                    "check that the process may allocate memory and that the oneDNN library fits "
                    "this processor");
}

}  // namespace

bool gemm_takes(DType input) {
  if (input == DType::kF32) return true;
  if (input != DType::kBF16) return false;
  static const bool kTakesBf16 = [] {
    const GemmShape some = {.m = 16,
                            .n = 16,
                            .k = 16,
                            .a_stride = 16,
                            .b_stride = 16,
                            .c_stride = 16,
                            .input = DType::kBF16};
    try {
      describe(some, dnnl::engine(dnnl::engine::kind::cpu, 0));
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return kTakesBf16;
}

bool onednn_multiplies_pairs() {
  // oneDNN's instruction sets are sets of bits, and a better set has all the bits of a lesser one.
  constexpr auto kPairs = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kPairs) == kPairs;
}

void gemm(const GemmShape& shape, const GemmOperands& operands) {
  try {
    thread_gemms().run(shape, operands);
  } catch (const dnnl::error& error) {
    throw_failure(shape, error);
  }
}

std::size_t gemm_scratch_bytes(const GemmShape& shape) {
  try {
    return thread_gemms().scratch_bytes(shape);
  } catch (const dnnl::error& error) {
    throw_failure(shape, error);
  }
}

}  // namespace terrace

#include "kernels/cuda/cuda_products.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"

namespace terrace {
namespace {

void check_cublas(cublasStatus_t status, std::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("{}: {}", call, cublasLtGetStatusString(status)),
                    "an earlier operation may be the cause: run again with CUDA_LAUNCH_BLOCKING=1");
}

// A descriptor of cuBLASLt that is destroyed with its scope.
template <typename Handle, cublasStatus_t (*Destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) Destroy(handle_);
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&&) = delete;

  Handle* out() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::kF32) return CUDA_R_32F;
  if (dtype == DType::kF16) return CUDA_R_16F;
  TERRACE_CHECK(dtype == DType::kBF16);
  return CUDA_R_16BF;
}

// cuBLASLt needs its workspace on a boundary of 256 bytes; ours may end anywhere.
constexpr std::size_t kScratchBoundary = 256;
constexpr std::size_t kScratchBytes = kCudaProductWorkspace - kScratchBoundary;

std::byte* scratch_in(std::span<std::byte> workspace) {
  TERRACE_CHECK_LE(kCudaProductWorkspace, workspace.size());
  std::byte* const first = workspace.last(kCudaProductWorkspace).data();
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  return first + (round_up(address, kScratchBoundary) - address);
}

// Returns the largest power of two up to 16, the widest load, that divides the address. It is no
// more than 16 because the place in an arena must not choose an algorithm.
std::uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 16U;
  return static_cast<std::uint32_t>(std::uintptr_t{1} << std::countr_zero(address));
}

// cuBLASLt counts by columns: to it, a dense row-major matrix is the transposed matrix. So c^T =
// b^T a^T, where an operand is "transposed" if its depth runs fastest.
struct Shape {
  std::int64_t rows, cols, depth, a_stride, b_stride;
  bool a_by_depth, b_by_depth, joins, has_bias;
  DType type, c_type;
  std::array<std::uint32_t, 4> alignments;

  auto operator<=>(const Shape&) const = default;
};

Shape shape_of(const shared::Product& p) {
  TERRACE_CHECK(p.a_depth == 1 || p.a_row == 1);
  TERRACE_CHECK(p.b_depth == 1 || p.b_col == 1);
  const bool a_by_depth = p.a_depth == 1;
  const bool b_by_depth = p.b_depth == 1;
  return {.rows = p.rows,
          .cols = p.cols,
          .depth = p.depth,
          .a_stride = a_by_depth ? p.a_row : p.a_depth,
          .b_stride = b_by_depth ? p.b_col : p.b_depth,
          .a_by_depth = a_by_depth,
          .b_by_depth = b_by_depth,
          .joins = p.joins,
          .has_bias = p.bias != nullptr,
          .type = p.type,
          .c_type = p.c_type,
          .alignments = {alignment_of(p.b), alignment_of(p.a), alignment_of(p.c),
                         alignment_of(p.bias)}};
}

Layout layout(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  Layout result;
  check_cublas(
      cublasLtMatrixLayoutCreate(result.out(), type_of(dtype), static_cast<std::uint64_t>(rows),
                                 static_cast<std::uint64_t>(cols), stride),
      "cublasLtMatrixLayoutCreate");
  return result;
}

template <typename Value>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check_cublas(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)),
               "cublasLtMatmulDescSetAttribute");
}

template <typename Value>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  check_cublas(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
      "cublasLtMatmulPreferenceSetAttribute");
}

// One shape, ready to be called. In cuBLASLt's terms A is b^T and B is a^T.
struct Call {
  Operation operation;
  Layout a, b, c;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // none: there is none
};

Call describe(const Shape& s) {
  Operation operation;
  check_cublas(cublasLtMatmulDescCreate(operation.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescCreate");
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, s.b_by_depth ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, s.a_by_depth ? CUBLAS_OP_N : CUBLAS_OP_T);
  if (s.has_bias) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(s.type));
  }
  return {std::move(operation),
          s.b_by_depth ? layout(s.type, s.depth, s.cols, s.b_stride)
                       : layout(s.type, s.cols, s.depth, s.b_stride),
          s.a_by_depth ? layout(s.type, s.depth, s.rows, s.a_stride)
                       : layout(s.type, s.rows, s.depth, s.a_stride),
          layout(s.c_type, s.cols, s.rows, s.cols), std::nullopt};
}

std::optional<cublasLtMatmulAlgo_t> choose(cublasLtHandle_t handle, const Shape& s,
                                           const Call& call) {
  Preference preference;
  check_cublas(cublasLtMatmulPreferenceCreate(preference.out()), "cublasLtMatmulPreferenceCreate");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kScratchBytes);
  // Parts of the depth are added in workspace, in their order, without atomic additions. With a
  // bias the depth is not split, because the bias was seen to be added to a sum that had been
  // rounded.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{s.has_bias ? CUBLASLT_REDUCTION_SCHEME_NONE
                               : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s.alignments[0]);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.alignments[1]);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.alignments[2]);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.alignments[2]);
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, call.operation.get(), call.a.get(), call.b.get(), call.c.get(), call.c.get(),
      preference.get(), 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return found.algo;
}

}  // namespace

struct CudaProducts::State {
  cublasLtHandle_t handle = nullptr;
  std::map<Shape, Call> calls;
};

CudaProducts::CudaProducts() : state_(std::make_unique<State>()) {
  check_cublas(cublasLtCreate(&state_->handle), "cublasLtCreate");
}

CudaProducts::~CudaProducts() { cublasLtDestroy(state_->handle); }

bool CudaProducts::enqueue(const shared::Product& product, std::span<std::byte> workspace,
                           NativeStream stream) {
  const Shape shape = shape_of(product);
  auto found = state_->calls.find(shape);
  if (found == state_->calls.end()) {
    Call call = describe(shape);
    call.algorithm = choose(state_->handle, shape, call);
    found = state_->calls.emplace(shape, std::move(call)).first;
  }
  Call& call = found->second;
  if (!call.algorithm) return false;
  if (product.bias != nullptr) {
    set(call.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  }
  const float one = 1.0F;
  const float beta = product.joins ? 1.0F : 0.0F;
  check_cublas(cublasLtMatmul(state_->handle, call.operation.get(), &one, product.b, call.a.get(),
                              product.a, call.b.get(), &beta, product.c, call.c.get(), product.c,
                              call.c.get(), &*call.algorithm, scratch_in(workspace), kScratchBytes,
                              static_cast<cudaStream_t>(stream.handle)),
               "cublasLtMatmul");
  return true;
}

}  // namespace terrace

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/shared/block.h"
#include "kernels/shared/mma.h"

// The Block of kernels/shared/block.h on a GPU: the calling thread's part of it.
namespace terrace {

namespace cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

// Returns two elements of 16 bits as a register of a tensor core's operand.
template <typename T>
__device__ unsigned word(const shared::Pair<T>& pair) {
  return static_cast<unsigned>(pair.x.bits) | static_cast<unsigned>(pair.y.bits) << 16;
}

__device__ inline void multiply_piece(shared::MmaSums& sums, const shared::MmaA<Bf16>& a,
                                      const shared::MmaB<Bf16>& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sums.at[0]), "+f"(sums.at[1]), "+f"(sums.at[2]), "+f"(sums.at[3])
      : "r"(word(a.at[0])), "r"(word(a.at[1])), "r"(word(a.at[2])), "r"(word(a.at[3])),
        "r"(word(b.at[0])), "r"(word(b.at[1])));
}

__device__ inline void multiply_piece(shared::MmaSums& sums, const shared::MmaA<Fp16>& a,
                                      const shared::MmaB<Fp16>& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sums.at[0]), "+f"(sums.at[1]), "+f"(sums.at[2]), "+f"(sums.at[3])
      : "r"(word(a.at[0])), "r"(word(a.at[1])), "r"(word(a.at[2])), "r"(word(a.at[3])),
        "r"(word(b.at[0])), "r"(word(b.at[1])));
}

// Computes the same product in fp32 arithmetic: every element comes from the thread that holds it.
// It is a call, not inlined: fp32 is for tests, and a kernel has thousands of these products.
__device__ __noinline__ inline void multiply_piece(shared::MmaSums& sums,
                                                   const shared::MmaA<float>& a,
                                                   const shared::MmaB<float>& b) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4 * 4;
  const int col = shared::mma_pair(lane);
  TERRACE_UNROLL
  for (int k = 0; k < 16; ++k) {
    const int from = k % 8 / 2;
    const bool is_second = k % 2 != 0;
    const auto pick = [is_second](const shared::Pair<float>& pair, int source) {
      return __shfl_sync(kAllLanes, is_second ? pair.y : pair.x, source);
    };
    const float a0 = pick(a.at[k / 8 * 2], row + from);
    const float a1 = pick(a.at[k / 8 * 2 + 1], row + from);
    const float b0 = pick(b.at[k / 8], col * 4 + from);
    const float b1 = pick(b.at[k / 8], col * 4 + 4 + from);
    sums.at[0] = ::fmaf(a0, b0, sums.at[0]);
    sums.at[1] = ::fmaf(a0, b1, sums.at[1]);
    sums.at[2] = ::fmaf(a1, b0, sums.at[2]);
    sums.at[3] = ::fmaf(a1, b1, sums.at[3]);
  }
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory, one register for each; thread t
// passes the address of row t % 8 of matrix t / 8 (PTX ISA, "ldmatrix").
template <bool Transposed, typename Piece>
__device__ Piece load_matrices(const void* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  uint4 words;
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address)
                 : "memory");
  }
  static_assert(sizeof(Piece) == sizeof(words));
  return *reinterpret_cast<const Piece*>(&words);
}

// Returns the value of the lane that is `offset` away.
template <typename T>
__device__ T exchange(T value, int offset) {
  if constexpr (std::is_arithmetic_v<T>) {
    return __shfl_xor_sync(kAllLanes, value, offset);
  } else {
    TERRACE_UNROLL
    for (auto& part : value.at) part = exchange(part, offset);
    return value;
  }
}

struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Most {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

}  // namespace cuda

template <int Threads>
class CudaBlock {
 public:
  static constexpr int kThreads = Threads;
  static constexpr int kWarps = Threads / 32;

  template <typename T>
  class PerThread {
   public:
    __device__ T& operator[](int) { return value_; }

   private:
    T value_;
  };

  __device__ std::int64_t index() const { return blockIdx.x; }
  __device__ std::byte* shared_memory() const {
    extern __shared__ uint4 terrace_shared_memory[];
    return reinterpret_cast<std::byte*>(terrace_shared_memory);
  }
  __device__ void sync() const { __syncthreads(); }

  template <typename Body>
  __device__ void for_each_thread(Body&& body) const {
    body(static_cast<int>(threadIdx.x));
  }

  template <typename T>
  __device__ T sum(PerThread<T>& values) const {
    return reduce(values[0], cuda::Plus{});
  }
  template <typename T>
  __device__ T max(PerThread<T>& values) const {
    return reduce(values[0], cuda::Most{});
  }
  template <typename T>
  __device__ void warp_sum(PerThread<T>& values) const {
    values[0] = butterfly<16>(values[0], cuda::Plus{});
  }
  template <typename T>
  __device__ void warp_max(PerThread<T>& values) const {
    if constexpr (std::is_same_v<T, unsigned>) {
      values[0] = __reduce_max_sync(cuda::kAllLanes, values[0]);
    } else {
      values[0] = butterfly<16>(values[0], cuda::Most{});
    }
  }
  template <typename T>
  __device__ void quad_sum(PerThread<T>& values) const {
    values[0] = butterfly<2>(values[0], cuda::Plus{});
  }
  template <typename T>
  __device__ void quad_max(PerThread<T>& values) const {
    values[0] = butterfly<2>(values[0], cuda::Most{});
  }

  template <typename SumsOf, typename Sums2Of, typename AOf, typename BOf>
  __device__ void multiply2(const SumsOf& sums_of, const Sums2Of& sums2_of, const AOf& a_of,
                            const BOf& b2_of) const {
    const int t = static_cast<int>(threadIdx.x);
    const auto a = a_of(t);
    const auto b2 = b2_of(t);
    cuda::multiply_piece(sums_of(t), a, b2.at[0]);
    cuda::multiply_piece(sums2_of(t), a, b2.at[1]);
  }

  template <typename T>
  __device__ static shared::MmaA<T> a_of_tile(const shared::Tile<T>& tile, int row, int col,
                                              int t) {
    if constexpr (sizeof(T) != 2) {
      return shared::a_of_tile(tile, row, col, t);
    } else {
      return cuda::load_matrices<false, shared::MmaA<T>>(shared::row_for_a(tile, row, col, t));
    }
  }
  template <typename T>
  __device__ static shared::MmaB2<T> b2_of_rows(const shared::Tile<T>& tile, int row, int col,
                                                int t) {
    if constexpr (sizeof(T) != 2) {
      return shared::b2_of_rows(tile, row, col, t);
    } else {
      return cuda::load_matrices<false, shared::MmaB2<T>>(
          shared::row_for_b2_of_rows(tile, row, col, t));
    }
  }
  template <typename T>
  __device__ static shared::MmaB2<T> b2_of_columns(const shared::Tile<T>& tile, int row, int col,
                                                   int t) {
    if constexpr (sizeof(T) != 2) {
      return shared::b2_of_columns(tile, row, col, t);
    } else {
      return cuda::load_matrices<true, shared::MmaB2<T>>(
          shared::row_for_b2_of_columns(tile, row, col, t));
    }
  }

  template <int Bytes>
  __device__ static void copy_async(void* to, const void* from, int count) {
    const auto target = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (Bytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(target), "l"(from),
                   "r"(count)
                   : "memory");
    } else {
      static_assert(Bytes == 4);
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(target), "l"(from),
                   "r"(count)
                   : "memory");
    }
  }
  __device__ static void await_copies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

 private:
  template <int First, typename T, typename Join>
  __device__ static T butterfly(T value, Join join) {
    TERRACE_UNROLL
    for (int offset = First; offset > 0; offset /= 2) {
      value = join(value, cuda::exchange(value, offset));
    }
    return value;
  }

  template <typename T, typename Join>
  __device__ static T reduce(T value, Join join) {
    __shared__ T warps[kWarps];
    value = butterfly<16>(value, join);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    T result = warps[0];
    TERRACE_UNROLL
    for (int warp = 1; warp < kWarps; ++warp) result = join(result, warps[warp]);
    __syncthreads();  // before the next reduction writes
    return result;
  }
};

// How many blocks a multiprocessor should hold at once, where a kernel states it; 0 sets no number.
template <typename Kernel>
inline constexpr int kBlocksAtOnce = 0;
template <typename Kernel>
  requires(Kernel::kBlocksAtOnce >= 0)
inline constexpr int kBlocksAtOnce<Kernel> = Kernel::kBlocksAtOnce;

template <int Threads, typename Kernel>
__global__ void __launch_bounds__(Threads, kBlocksAtOnce<Kernel>)
    run_kernel(const __grid_constant__ Kernel kernel) {
  CudaBlock<Threads> block;
  kernel(block);
}

}  // namespace terrace

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/shared/element.h"
#include "memory/tensor.h"

// The seam that lets one text of a kernel run on a GPU and, thread by thread, on the host.
//
// A kernel is a struct of arguments with  template <typename Block> void operator()(Block&) const,
// the work of one block of threads. It is written in phases:
//
//   Block::kThreads                 threads of a block, a multiple of 32
//   Block::PerThread<T>             a T of each thread; values[t]
//   block.index()                   which block of the launch
//   block.for_each_thread(body)     body(t), once for each thread, in no order
//   block.sync()                    what threads wrote to shared memory before, all see after
//   block.shared_memory()           std::byte*, the bytes asked at the launch, aligned to 16
//   block.sum(values), max(values)  of all threads: halves of each 32 neighbours are added
//                                   (offsets 16, 8, 4, 2, 1), then these sums in order;
//                                   of arithmetic types, and sums of Floats<n>
//   block.warp_sum(values), warp_max(values)   of each 32 neighbours alone, in the same order:
//                                   every one gets the result
//   block.quad_sum(values), quad_max(values)   of each four neighbours: every one gets the result
//   block.multiply2(sums, sums2, a, b2)   tensor cores, for each 32 threads: kernels/shared/mma.h
//   block.a_of_tile(tile, row, col, t), b2_of_rows(...), b2_of_columns(...)
//                                   what mma.h's functions of these names give; within
//                                   for_each_thread() or multiply2(), for all 32 threads together
//   block.copy_async<Bytes>(to, from, count)   in shared memory `to`, 4 or 16 Bytes: `count` of
//                                   them from `from`, then zeros; both on boundaries of Bytes
//   block.await_copies()            the thread's copies are there; others see them after a sync()
//
// On the GPU a body runs for the calling thread alone, and a PerThread is a register. A value that
// is computed outside of for_each_thread() is the same in all threads. Blocks do not communicate.
//
// The functions of kernels/shared/ that begin such kernels take a Launcher:
//
//   launcher.launch<Threads>(name, kernel, blocks, shared_bytes)
//   launcher.copy(target, source, bytes), launcher.zero(target, bytes)     in stream order
//   launcher.product(Product)
//   launcher.attention(op)     whether a library does this AttentionForward or AttentionBackward
//   launcher.workspace()                                      std::span<std::byte>
//
// On the GPU (kernels/cuda) a Launcher enqueues work; in the tests (tests/kernels) it runs blocks
// on workers.
namespace terrace::shared {

// c[rows, cols] = a b, summed in fp32 over `depth` and rounded once to the type of c. a and b have
// one compute type. Element (row, k) of a and element (k, col) of b lie at the strides given, in
// elements; one stride of each matrix is 1. c is dense.
struct Product {
  std::int64_t rows = 0, cols = 0, depth = 0;
  const std::byte* a = nullptr;
  std::int64_t a_row = 0, a_depth = 0;
  const std::byte* b = nullptr;
  std::int64_t b_depth = 0, b_col = 0;
  std::byte* c = nullptr;
  DType type = DType::kF32;         // of a, b and bias
  DType c_type = DType::kF32;       // `type`, or fp32
  const std::byte* bias = nullptr;  // [cols], added before the rounding; may be null
  bool joins = false;               // c = c + a b instead, for an fp32 c without bias
};

// Cuts the workspace of a call into arrays, in the order of the calls.
class WorkspaceCutter {
 public:
  explicit WorkspaceCutter(std::span<std::byte> workspace) : rest_(workspace) {}

  template <typename T>
  T* take(std::int64_t count) {
    const std::size_t bytes = padded_bytes(static_cast<std::size_t>(count) * sizeof(T));
    TERRACE_CHECK_LE(bytes, rest_.size());
    T* const array = reinterpret_cast<T*>(rest_.data());
    rest_ = rest_.subspan(bytes);
    return array;
  }

  // Takes an array that is added to `target` later. It lies as far from a boundary of 16 bytes as
  // `target` does, so that a product into either is computed in the same way. Takes as many bytes
  // as padded_like() says.
  template <typename T>
  T* take_like(std::int64_t count, const T* target) {
    T* const array = take<T>(count + kBoundary / static_cast<std::int64_t>(sizeof(T)));
    return array + reinterpret_cast<std::uintptr_t>(target) % kBoundary / sizeof(T);
  }
  static std::size_t padded_like(std::size_t bytes) { return padded_bytes(bytes + kBoundary); }

  static std::size_t padded_bytes(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  static constexpr std::int64_t kBoundary = 16;

  std::span<std::byte> rest_;
};

}  // namespace terrace::shared

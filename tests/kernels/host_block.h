#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/shared/block.h"
#include "kernels/shared/mma.h"
#include "kernels/shared/tile_product.h"
#include "memory/host/worker_arena.h"
#include "tests/kernels/block_parts.h"

// Runs the kernels of kernels/shared on the host: the blocks of a launch on workers, the threads of
// a block one after the other, in an order that differs from block to block. Memory that a kernel
// reads without having written it is a NaN, and a write past its shared memory is found.
namespace terrace::test {

template <int Threads>
class HostBlock {
 public:
  static constexpr int kThreads = Threads;
  static constexpr int kWarp = 32;
  static_assert(Threads % kWarp == 0);

  template <typename T>
  class PerThread {
   public:
    T& operator[](int t) { return values_[static_cast<std::size_t>(t)]; }

   private:
    // Zeros would hide elements that are never set.
    struct Garbage {
      Garbage() { std::memset(static_cast<void*>(bytes), 0xFF, sizeof(bytes)); }
      alignas(T) std::byte bytes[sizeof(T) * Threads];
    };
    std::unique_ptr<Garbage> garbage_ = std::make_unique<Garbage>();
    T* values_ = reinterpret_cast<T*>(garbage_->bytes);
  };

  HostBlock(std::int64_t index, std::size_t shared_bytes)
      : index_(index), shared_memory_(shared_bytes) {}

  std::int64_t index() const { return index_; }
  std::byte* shared_memory() { return shared_memory_.at(); }
  void sync() {}

  template <typename Body>
  void for_each_thread(Body&& body) {
    const bool backwards = index_ % 2 != 0;
    for (int t = 0; t < Threads; ++t) body(backwards ? Threads - 1 - t : t);
  }

  template <typename T>
  T sum(PerThread<T>& values) {
    return reduce(values, [](T a, T b) { return a + b; });
  }
  template <typename T>
  T max(PerThread<T>& values) {
    return reduce(values, [](T a, T b) { return a < b ? b : a; });
  }
  template <typename T>
  void warp_sum(PerThread<T>& values) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      butterfly(values, offset, [](T a, T b) { return a + b; });
    }
  }
  template <typename T>
  void warp_max(PerThread<T>& values) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      butterfly(values, offset, [](T a, T b) { return a < b ? b : a; });
    }
  }
  template <typename T>
  void quad_sum(PerThread<T>& values) {
    for (int offset = 2; offset > 0; offset /= 2) {
      butterfly(values, offset, [](T a, T b) { return a + b; });
    }
  }
  template <typename T>
  void quad_max(PerThread<T>& values) {
    for (int offset = 2; offset > 0; offset /= 2) {
      butterfly(values, offset, [](T a, T b) { return a < b ? b : a; });
    }
  }

  template <typename SumsOf, typename Sums2Of, typename AOf, typename BOf>
  void multiply2(const SumsOf& sums_of, const Sums2Of& sums2_of, const AOf& a_of,
                 const BOf& b2_of) {
    multiply(sums_of, a_of, [&](int t) { return b2_of(t).at[0]; });
    multiply(sums2_of, a_of, [&](int t) { return b2_of(t).at[1]; });
  }

  template <typename T>
  static shared::MmaA<T> a_of_tile(const shared::Tile<T>& tile, int row, int col, int t) {
    expect_boundary(&tile.element(row, col), 16);
    return shared::a_of_tile(tile, row, col, t);
  }
  template <typename T>
  static shared::MmaB2<T> b2_of_rows(const shared::Tile<T>& tile, int row, int col, int t) {
    expect_boundary(&tile.element(row, col), 16);
    return shared::b2_of_rows(tile, row, col, t);
  }
  template <typename T>
  static shared::MmaB2<T> b2_of_columns(const shared::Tile<T>& tile, int row, int col, int t) {
    expect_boundary(&tile.element(row, col), 16);
    return shared::b2_of_columns(tile, row, col, t);
  }

  template <int Bytes>
  static void copy_async(void* to, const void* from, int count) {
    expect_boundary(to, Bytes);
    expect_boundary(from, Bytes);
    std::memset(to, 0, Bytes);
    if (count != 0) std::memcpy(to, from, static_cast<std::size_t>(count));
  }
  static void await_copies() {}

 private:
  template <typename SumsOf, typename AOf, typename BOf>
  void multiply(const SumsOf& sums_of, const AOf& a_of, const BOf& b_of) {
    for (int warp = 0; warp < Threads; warp += kWarp) {
      MmaOperands operands;
      for (int t = warp; t < warp + kWarp; ++t) {
        operands.take_a(t, a_of(t));
        operands.take_b(t, b_of(t));
      }
      for (int t = warp; t < warp + kWarp; ++t) operands.add_to(sums_of(t), t);
    }
  }

  template <typename T, typename Join>
  static void butterfly(PerThread<T>& values, int offset, const Join& join) {
    std::array<T, Threads> before;
    for (int t = 0; t < Threads; ++t) before[t] = values[t];
    for (int t = 0; t < Threads; ++t) values[t] = join(before[t], before[t ^ offset]);
  }

  template <typename T, typename Join>
  T reduce(PerThread<T>& values, const Join& join) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) butterfly(values, offset, join);
    T result = values[0];
    for (int warp = kWarp; warp < Threads; warp += kWarp) result = join(result, values[warp]);
    return result;
  }

  const std::int64_t index_;
  BlockMemory shared_memory_;
};

class HostLauncher : public HostLauncherBase {
 public:
  HostLauncher(WorkerArena& workers, std::span<std::byte> workspace)
      : HostLauncherBase(workspace), workers_(workers) {}

  template <int Threads, typename Kernel>
  void launch(std::string_view /*name*/, const Kernel& kernel, std::int64_t blocks,
              std::size_t shared_bytes = 0) {
    workers_.parallel_for(blocks, [&](std::int64_t index, int) {
      HostBlock<Threads> block(index, shared_bytes);
      kernel(block);
    });
  }

  void product(const shared::Product& product) { shared::tile_product(*this, product); }

 private:
  WorkerArena& workers_;
};

}  // namespace terrace::test

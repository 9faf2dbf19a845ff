#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/shared/block.h"
#include "kernels/shared/mma.h"
#include "kernels/shared/tile_product.h"
#include "tests/kernels/block_parts.h"
#include "tests/kernels/fiber_team.h"

// Runs the kernels of kernels/shared on the host as a GPU does: every thread of a block runs by
// itself until it meets others (fiber_team.h), its registers are its own, and an exchange of values
// within a warp orders nothing in memory. This is slower than host_block.h, and stricter.
//
// ThreadSanitizer finds memory that two threads of a block, or of neighbouring blocks, use with no
// sync() between, if one of them writes it. If threads never meet, or meet in different calls, the
// program names them and ends. Asynchronous copies arrive when they are awaited; before that, the
// target has NaNs. Pieces of tensor cores' operands are loaded as ldmatrix loads them, by the
// threads that give rows.
namespace terrace::test {

// The state that the threads of a block share.
template <int Threads>
struct FiberBlockState {
  static constexpr int kWarps = Threads / 32;
  static constexpr std::size_t kRegisterBytes = 64;

  struct alignas(16) Register {
    std::byte bytes[kRegisterBytes];
  };
  // The memory of one exchange within a warp. The next exchange uses another place, because it may
  // begin while threads still read.
  struct Exchange {
    std::array<Register, 32> registers;
    std::array<MmaOperands, 2> operands;
  };

  explicit FiberBlockState(std::size_t shared_bytes) : shared_memory(shared_bytes) {}

  BlockMemory shared_memory;
  std::array<Register, kWarps> sums;  // of reductions over the block
  std::array<std::array<Exchange, 2>, kWarps> exchanges;
  std::array<char, 2> barriers;  // tokens, used in turn
};

template <int Threads>
class FiberBlock {
 public:
  static constexpr int kThreads = Threads;
  static constexpr int kWarp = 32;
  static constexpr int kWarps = Threads / kWarp;

  template <typename T>
  class PerThread {
   public:
    PerThread() { std::memset(bytes_, 0xFF, sizeof(bytes_)); }
    T& operator[](int /*t*/) { return *reinterpret_cast<T*>(bytes_); }

   private:
    static_assert(std::is_trivially_destructible_v<T>);
    alignas(T) std::byte bytes_[sizeof(T)];
  };

  FiberBlock(FiberTeam& team, FiberBlockState<Threads>& state, std::int64_t index, int t)
      : team_(team), state_(state), index_(index), t_(t) {}
  ~FiberBlock() { TERRACE_CHECK(copies_.empty()); }
  FiberBlock(const FiberBlock&) = delete;
  FiberBlock& operator=(const FiberBlock&) = delete;

  std::int64_t index() const { return index_; }
  std::byte* shared_memory() { return state_.shared_memory.at(); }

  void sync() {
    char* const token = &state_.barriers[barriers_++ % 2];
    announce(token);
    team_.meet_block(t_, "sync()");
    see(token);
  }

  template <typename Body>
  void for_each_thread(Body&& body) {
    body(t_);
  }

  template <typename T>
  T sum(PerThread<T>& values) {
    return reduce(values[t_], [](T a, T b) { return a + b; });
  }
  template <typename T>
  T max(PerThread<T>& values) {
    return reduce(values[t_], [](T a, T b) { return a < b ? b : a; });
  }
  template <typename T>
  void warp_sum(PerThread<T>& values) {
    values[t_] = butterfly(values[t_], 16, "warp_sum()", [](T a, T b) { return a + b; });
  }
  template <typename T>
  void warp_max(PerThread<T>& values) {
    values[t_] = butterfly(values[t_], 16, "warp_max()", [](T a, T b) { return a < b ? b : a; });
  }
  template <typename T>
  void quad_sum(PerThread<T>& values) {
    values[t_] = butterfly(values[t_], 2, "quad_sum()", [](T a, T b) { return a + b; });
  }
  template <typename T>
  void quad_max(PerThread<T>& values) {
    values[t_] = butterfly(values[t_], 2, "quad_max()", [](T a, T b) { return a < b ? b : a; });
  }

  template <typename SumsOf, typename Sums2Of, typename AOf, typename BOf>
  void multiply2(const SumsOf& sums_of, const Sums2Of& sums2_of, const AOf& a_of,
                 const BOf& b2_of) {
    const auto a = a_of(t_);
    const auto b2 = b2_of(t_);
    auto& operands = next_exchange().operands;
    {
      const Unseen unseen;
      for (std::size_t i = 0; i < 2; ++i) {
        operands[i].take_a(t_, a);
        operands[i].take_b(t_, b2.at[i]);
      }
    }
    team_.meet_warp(t_, "multiply2()");
    const Unseen unseen;
    operands[0].add_to(sums_of(t_), t_);
    operands[1].add_to(sums2_of(t_), t_);
  }

  template <typename T>
  shared::MmaA<T> a_of_tile(const shared::Tile<T>& tile, int row, int col, int t) {
    if constexpr (sizeof(T) != 2) {
      return shared::a_of_tile(tile, row, col, t);
    } else {
      return load_matrices<shared::MmaA<T>>(shared::row_for_a(tile, row, col, t));
    }
  }
  template <typename T>
  shared::MmaB2<T> b2_of_rows(const shared::Tile<T>& tile, int row, int col, int t) {
    if constexpr (sizeof(T) != 2) {
      return shared::b2_of_rows(tile, row, col, t);
    } else {
      return load_matrices<shared::MmaB2<T>>(shared::row_for_b2_of_rows(tile, row, col, t));
    }
  }
  template <typename T>
  shared::MmaB2<T> b2_of_columns(const shared::Tile<T>& tile, int row, int col, int t) {
    if constexpr (sizeof(T) != 2) {
      return shared::b2_of_columns(tile, row, col, t);
    } else {
      return load_transposed<shared::MmaB2<T>>(shared::row_for_b2_of_columns(tile, row, col, t));
    }
  }

  template <int Bytes>
  void copy_async(void* to, const void* from, int count) {
    expect_boundary(to, Bytes);
    expect_boundary(from, Bytes);
    // Both `from` and `to` are in use from now on.
    std::byte now[Bytes];
    if (count != 0) std::memcpy(now, from, static_cast<std::size_t>(count));
    std::memset(to, 0xFF, Bytes);
    copies_.push_back({to, from, static_cast<std::size_t>(count), Bytes});
  }
  void await_copies() {
    for (const Copy& copy : copies_) {
      std::memset(copy.to, 0, copy.bytes);
      if (copy.count != 0) std::memcpy(copy.to, copy.from, copy.count);
    }
    copies_.clear();
  }

 private:
  using State = FiberBlockState<Threads>;
  struct Copy {
    void* to;
    const void* from;
    std::size_t count, bytes;
  };

  typename State::Exchange& next_exchange() {
    return state_.exchanges[static_cast<std::size_t>(t_ / kWarp)][exchanges_++ % 2];
  }

  // Gives every thread of the warp the others' values: of(lane) is a T.
  template <typename T>
  class Given {
   public:
    explicit Given(const typename State::Exchange& exchange) : exchange_(exchange) {}
    T of(int lane) const {
      const Unseen unseen;
      T value;
      std::memcpy(static_cast<void*>(&value),
                  exchange_.registers[static_cast<std::size_t>(lane)].bytes, sizeof(T));
      return value;
    }

   private:
    const typename State::Exchange& exchange_;
  };
  template <typename T>
  Given<T> give(const T& value, std::string_view what) {
    static_assert(sizeof(T) <= State::kRegisterBytes && std::is_trivially_copyable_v<T>);
    auto& exchange = next_exchange();
    {
      const Unseen unseen;
      std::memcpy(exchange.registers[static_cast<std::size_t>(t_ % kWarp)].bytes, &value,
                  sizeof(T));
    }
    team_.meet_warp(t_, what);
    return Given<T>(exchange);
  }

  // Joins values in the order of kernels/cuda/cuda_block.cuh.
  template <typename T, typename Join>
  T butterfly(T value, int first, std::string_view what, const Join& join) {
    for (int offset = first; offset > 0; offset /= 2) {
      value = join(value, give(value, what).of(t_ % kWarp ^ offset));
    }
    return value;
  }

  // Joins the values of all threads in that file's order, with its barriers.
  template <typename T, typename Join>
  T reduce(T value, const Join& join) {
    static_assert(sizeof(T) <= State::kRegisterBytes);
    const auto sum_of = [this](int warp) {
      return reinterpret_cast<T*>(state_.sums[static_cast<std::size_t>(warp)].bytes);
    };
    value = butterfly(value, kWarp / 2, "sum() or max()", join);
    if (t_ % kWarp == 0) *sum_of(t_ / kWarp) = value;
    sync();
    T result = *sum_of(0);
    for (int warp = 1; warp < kWarps; ++warp) result = join(result, *sum_of(warp));
    sync();
    return result;
  }

  using MatrixRow = std::array<std::uint16_t, 8>;

  template <typename T>
  Given<MatrixRow> give_row(const T* row) {
    expect_boundary(row, sizeof(MatrixRow));
    MatrixRow words;
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::bit_cast<std::uint16_t>(row[i]);
    return give(words, "ldmatrix");
  }

  // Loads four matrices: of each, thread t gets element t % 4 * 2 of row t / 4 and the next one.
  template <typename Piece, typename T>
  Piece load_matrices(const T* row) {
    const Given<MatrixRow> rows = give_row(row);
    std::array<std::uint16_t, 8> words;
    for (int matrix = 0; matrix < 4; ++matrix) {
      const MatrixRow from = rows.of(matrix * 8 + t_ % kWarp / 4);
      for (int i = 0; i < 2; ++i) words.at(matrix * 2 + i) = from.at(t_ % 4 * 2 + i);
    }
    return std::bit_cast<Piece>(words);
  }
  // Does the same for matrices whose columns were given.
  template <typename Piece, typename T>
  Piece load_transposed(const T* row) {
    const Given<MatrixRow> rows = give_row(row);
    std::array<std::uint16_t, 8> words;
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int i = 0; i < 2; ++i) {
        words.at(matrix * 2 + i) =
            rows.of(matrix * 8 + t_ % 4 * 2 + i).at(static_cast<std::size_t>(t_ % kWarp / 4));
      }
    }
    return std::bit_cast<Piece>(words);
  }

  FiberTeam& team_;
  FiberBlockState<Threads>& state_;
  const std::int64_t index_;
  const int t_;
  std::size_t barriers_ = 0;
  std::size_t exchanges_ = 0;  // of its warp
  std::vector<Copy> copies_;   // not yet awaited
};

class FiberLauncher : public HostLauncherBase {
 public:
  explicit FiberLauncher(std::span<std::byte> workspace = {}) : HostLauncherBase(workspace) {}

  template <int Threads, typename Kernel>
  void launch(std::string_view /*name*/, const Kernel& kernel, std::int64_t blocks,
              std::size_t shared_bytes = 0) {
    FiberTeam& team = fiber_team();
    {
      // Writes here for one block would race with reads of the last block's fibers.
      const Unseen unseen;
      for (std::int64_t index = 0; index < blocks; ++index) {
        const auto state = std::make_unique<FiberBlockState<Threads>>(shared_bytes);
        team.run(index, Threads, [&](int t) {
          FiberBlock<Threads> block(team, *state, index, t);
          kernel(block);
        });
      }
    }
    team.join();
  }

  void product(const shared::Product& product) { shared::tile_product(*this, product); }
};

}  // namespace terrace::test

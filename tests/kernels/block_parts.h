#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/shared/mma.h"

// The parts that a GPU's blocks have on the host, however their threads take turns (host_block.h,
// fiber_block.h).
namespace terrace::test {

// Shared memory: it has NaNs until it is written, and a write past its end is found.
class BlockMemory {
 public:
  explicit BlockMemory(std::size_t bytes) : bytes_(bytes), lines_((bytes + 15) / 16 + 1) {
    std::memset(static_cast<void*>(lines_.data()), 0xFF, lines_.size() * sizeof(Line));
  }
  // Checks that the byte after the last is as it was.
  ~BlockMemory() { TERRACE_CHECK(at()[bytes_] == std::byte{0xFF}); }
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;

  std::byte* at() { return reinterpret_cast<std::byte*>(lines_.data()); }

 private:
  struct alignas(16) Line {
    std::byte bytes[16];
  };
  std::size_t bytes_;
  std::vector<Line> lines_;
};

// Checks that an address is on a boundary, which a GPU needs to load or copy.
inline void expect_boundary(const void* address, std::uintptr_t bytes) {
  TERRACE_CHECK_EQ(reinterpret_cast<std::uintptr_t>(address) % bytes, 0U);
}

// A warp's operands of one product of tensor cores, put together from the pieces that its threads
// hold.
struct MmaOperands {
  std::array<std::array<float, 16>, 16> a;
  std::array<std::array<float, 8>, 16> b;

  template <typename T>
  void take_a(int t, const shared::MmaA<T>& piece) {
    const auto g = static_cast<std::size_t>(shared::mma_group(t));
    const auto p = static_cast<std::size_t>(shared::mma_pair(t));
    for (std::size_t i = 0; i < 4; ++i) {
      a[g + i % 2 * 8][p + i / 2 * 8] = to_float(piece.at[i].x);
      a[g + i % 2 * 8][p + i / 2 * 8 + 1] = to_float(piece.at[i].y);
    }
  }
  template <typename T>
  void take_b(int t, const shared::MmaB<T>& piece) {
    const auto g = static_cast<std::size_t>(shared::mma_group(t));
    const auto p = static_cast<std::size_t>(shared::mma_pair(t));
    for (std::size_t i = 0; i < 2; ++i) {
      b[p + i * 8][g] = to_float(piece.at[i].x);
      b[p + i * 8 + 1][g] = to_float(piece.at[i].y);
    }
  }
  void add_to(shared::MmaSums& sums, int t) const {
    for (int i = 0; i < 4; ++i) {
      float& sum = sums.at[i];
      for (std::size_t k = 0; k < 16; ++k) {
        sum += a[shared::mma_row(t, i)][k] * b[k][shared::mma_col(t, i)];
      }
    }
  }
};

// The base of launchers that run blocks on the host.
class HostLauncherBase {
 public:
  explicit HostLauncherBase(std::span<std::byte> workspace) : workspace_(workspace) {}

  void copy(void* target, const void* source, std::size_t bytes) {
    if (bytes != 0) std::memcpy(target, source, bytes);
  }
  void zero(void* target, std::size_t bytes) {
    if (bytes != 0) std::memset(target, 0, bytes);
  }
  template <typename Op>
  bool attention(const Op& /*op*/) const {
    return false;
  }
  std::span<std::byte> workspace() const { return workspace_; }

 private:
  const std::span<std::byte> workspace_;
};

// The members for shared::KernelFunctions in which no library has a part.
struct HostFunctionsBase {
  static constexpr std::size_t kProductWorkspace = 0;
  template <typename Op>
  static std::size_t attention_workspace(const Op& /*op*/) {
    return 0;
  }
  static constexpr auto kPrepareAttention = nullptr;
};

}  // namespace terrace::test

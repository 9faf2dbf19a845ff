#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "kernels/shared/block.h"

// Ops in which every pack of elements is independent of the others.
namespace terrace::shared {

inline constexpr int kMapThreads = 256;

// Quotients by a number that is fixed for a launch, computed with a product and a shift: a 64-bit
// division takes a GPU about a hundred instructions.
class Divisor {
 public:
  Divisor() = default;
  // For dividends in [0, dividend_max]. Below 2^31 the quotient is n m >> (31 + s), with
  // s = ceil(log2 divisor) and m = ceil(2^(31 + s) / divisor), which has 32 bits: m divisor exceeds
  // 2^(31 + s) by less than 2^s, and so the product n by less than one unit of the remainder.
  Divisor(std::int64_t divisor, std::int64_t dividend_max) : divisor_(divisor) {
    TERRACE_CHECK_LT(0, divisor);
    constexpr std::int64_t kEnd = std::int64_t{1} << 31;
    if (divisor >= kEnd || dividend_max >= kEnd) return;
    shift_ = 31 + static_cast<int>(std::bit_width(static_cast<std::uint64_t>(divisor - 1)));
    const std::uint64_t power = std::uint64_t{1} << shift_;
    const auto unsigned_divisor = static_cast<std::uint64_t>(divisor);
    multiplier_ = (power + unsigned_divisor - 1) / unsigned_divisor;
  }

  TERRACE_KERNEL std::int64_t quotient(std::int64_t n) const {
    return multiplier_ == 0 ? n / divisor_ : short_quotient(static_cast<std::int32_t>(n));
  }
  // Returns the quotient without the branch, for a dividend_max below 2^31.
  TERRACE_KERNEL std::int32_t short_quotient(std::int32_t n) const {
    const std::uint64_t product =
        std::uint64_t{static_cast<std::uint32_t>(n)} * static_cast<std::uint32_t>(multiplier_);
    return static_cast<std::int32_t>(product >> shift_);
  }
  TERRACE_KERNEL std::int64_t remainder(std::int64_t n) const { return n - quotient(n) * divisor_; }
  TERRACE_KERNEL std::int64_t divisor() const { return divisor_; }

 private:
  std::int64_t divisor_ = 1;
  std::uint64_t multiplier_ = 0;  // 0: divides
  int shift_ = 0;
};

// The rows of a launch that an op with a `row_range` computes (kernels/row_range.h). The numbers
// are known on the GPU alone, so a launch has blocks for all rows.
class LaunchedRows {
 public:
  explicit LaunchedRows(const TensorView& row_range)
      : numbers_(row_range.empty() ? nullptr : row_range.as<const std::int32_t>()),
        last_(row_range.empty() ? 0 : row_range.elements() - 1) {}

  TERRACE_KERNEL bool have(std::int64_t row) const {
    return numbers_ == nullptr || (numbers_[0] <= row && row < numbers_[last_]);
  }

 private:
  const std::int32_t* numbers_;
  std::int64_t last_;
};

// body(row, first, count): elements [first, first + count) of a row, count at most Count.
template <int Count, typename Body>
struct MapKernel {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  Divisor packs;  // of a row
  Body body;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    block.for_each_thread([&](int t) {
      const std::int64_t pack = block.index() * Block::kThreads + t;
      const std::int64_t row = rows == 1 ? 0 : packs.quotient(pack);
      const std::int64_t first = (pack - row * packs.divisor()) * Count;
      if (row >= rows || first >= width) return;
      body(row, first, width - first < Count ? static_cast<int>(width - first) : Count);
    });
  }
};

template <int Count, typename Launcher, typename Body>
void launch_map(Launcher& launcher, std::string_view name, std::int64_t rows, std::int64_t width,
                const Body& body) {
  if (rows == 0 || width == 0) return;
  const std::int64_t packs = divide_up(width, Count);
  const std::int64_t blocks = divide_up(rows * packs, kMapThreads);
  const MapKernel<Count, Body> kernel{rows, width, Divisor(packs, blocks * kMapThreads), body};
  launcher.template launch<kMapThreads>(name, kernel, blocks);
}

}  // namespace terrace::shared

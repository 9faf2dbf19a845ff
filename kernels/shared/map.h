#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/shared/block.h"

// Ops in which every pack of elements is by itself.
namespace terrace::shared {

inline constexpr int kMapThreads = 256;

// body(row, first, count): elements [first, first + count) of a row, count at most Count.
template <int Count, typename Body>
struct MapKernel {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t packs = 0;  // of a row
  Body body;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    block.for_each_thread([&](int t) {
      const std::int64_t pack = block.index() * Block::kThreads + t;
      const std::int64_t row = pack / packs;
      if (row >= rows) return;
      const std::int64_t first = (pack - row * packs) * Count;
      body(row, first, width - first < Count ? width - first : std::int64_t{Count});
    });
  }
};

template <int Count, typename Launcher, typename Body>
void launch_map(Launcher& launcher, std::string_view name, std::int64_t rows, std::int64_t width,
                const Body& body) {
  if (rows == 0 || width == 0) return;
  const std::int64_t packs = divide_up(width, Count);
  launcher.template launch<kMapThreads>(name, MapKernel<Count, Body>{rows, width, packs, body},
                                        divide_up(rows * packs, kMapThreads));
}

}  // namespace terrace::shared

#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_context.h"

// The one way in which CPU kernels share work: blocks of indices that are fixed by the shape, never
// by the number of workers.
namespace terrace {

// Elements that a task of an elementwise op handles.
inline constexpr std::int64_t kElementBlock = std::int64_t{1} << 16;

inline std::int64_t blocks_of(std::int64_t count, std::int64_t block) {
  return (count + block - 1) / block;
}

// Calls body(begin, end) for the blocks of [0, count), on the context's workers.
template <typename Body>
void for_each_block(const KernelContext& context, std::int64_t count, std::int64_t block,
                    const Body& body) {
  context.workers->parallel_for(blocks_of(count, block), [&](std::int64_t index, int /*worker*/) {
    const std::int64_t begin = index * block;
    body(begin, std::min(begin + block, count));
  });
}

}  // namespace terrace

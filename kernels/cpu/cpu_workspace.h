#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "kernels/kernel_context.h"

namespace terrace {

// Adds up the regions of a workspace. The function that sizes a workspace and the op that uses it
// make the same calls in the same order, so they cannot disagree. Offsets and the total are
// multiples of 64.
class WorkspaceLayout {
 public:
  // The offset of a new region.
  std::size_t add(std::size_t size_bytes) {
    const std::size_t offset = total_;
    total_ += (size_bytes + 63) / 64 * 64;
    return offset;
  }
  std::size_t total_bytes() const { return total_; }

 private:
  std::size_t total_ = 0;
};

// What is left of a workspace behind `offset`, divided equally among the workers: the part of one.
// It is at least what the layout gave each worker, and 64-aligned.
inline std::span<std::byte> worker_share(const KernelContext& context, std::size_t offset,
                                         int worker) {
  TERRACE_CHECK_LE(offset, context.workspace.size());
  const auto workers = static_cast<std::size_t>(context.workers->threads());
  const std::size_t share = (context.workspace.size() - offset) / workers / 64 * 64;
  return context.workspace.subspan(offset + share * static_cast<std::size_t>(worker), share);
}

// The first `count` elements at `offset`.
template <typename T>
T* region_at(std::span<std::byte> bytes, std::size_t offset, std::int64_t count) {
  TERRACE_CHECK_LE(offset + static_cast<std::size_t>(count) * sizeof(T), bytes.size());
  return reinterpret_cast<T*>(bytes.data() + offset);
}

}  // namespace terrace

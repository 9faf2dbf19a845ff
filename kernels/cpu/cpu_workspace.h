#pragma once

#include <algorithm>
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

// Floating-point operations that are worth a worker: about 0.1 ms of a core with vectors of 512
// bits, several times what it takes to wake a thread.
inline constexpr double kWorkerFlops = 8 << 20;

// Returns how many of `workers` an op with scratch memory for each of them uses: none without a
// task, and none with less than kWorkerFlops to do. With the same shape, more workers than the op
// can feed change nothing, neither its workspace nor who computes.
inline int fed_workers(int workers, std::int64_t tasks, double flops) {
  const double by_work = std::max(1.0, flops / kWorkerFlops);
  const auto fed = static_cast<int>(std::min<double>(workers, by_work));
  return static_cast<int>(std::min<std::int64_t>(fed, std::max<std::int64_t>(1, tasks)));
}

// Bytes that are worth a worker where an op does little but read them: about 10 us of a core.
inline constexpr std::int64_t kWorkerBytes = 256 * 1024;

// Returns how many of `workers` such an op uses.
inline int workers_of_bytes(int workers, std::int64_t bytes) {
  return static_cast<int>(std::clamp<std::int64_t>(bytes / kWorkerBytes, 1, workers));
}

// Returns the part of `worker` of what is left of a workspace behind `offset`, divided equally
// among the `workers` that an op uses. It is at least what the layout gave each worker, and
// 64-aligned.
inline std::span<std::byte> worker_share(const KernelContext& context, std::size_t offset,
                                         int workers, int worker) {
  TERRACE_CHECK_LE(offset, context.workspace.size());
  TERRACE_CHECK_LT(worker, workers);
  const std::size_t share =
      (context.workspace.size() - offset) / static_cast<std::size_t>(workers) / 64 * 64;
  return context.workspace.subspan(offset + share * static_cast<std::size_t>(worker), share);
}

// The first `count` elements at `offset`.
template <typename T>
T* region_at(std::span<std::byte> bytes, std::size_t offset, std::int64_t count) {
  TERRACE_CHECK_LE(offset + static_cast<std::size_t>(count) * sizeof(T), bytes.size());
  return reinterpret_cast<T*>(bytes.data() + offset);
}

}  // namespace terrace

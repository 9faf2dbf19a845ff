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
  // Adds a region and returns its offset.
  std::size_t add(std::size_t size_bytes) {
    const std::size_t offset = total_;
    total_ += (size_bytes + 63) / 64 * 64;
    return offset;
  }
  std::size_t total_bytes() const { return total_; }

 private:
  std::size_t total_ = 0;
};

// The floating-point operations that make another worker worthwhile: about 0.1 ms of a core with
// vectors of 512 bits, several times the time it takes to wake a thread.
inline constexpr double kWorkerFlops = 8 << 20;

// Returns how many of `workers` an op with scratch memory for each of them uses: no worker is
// without a task, and none has less than kWorkerFlops to do. With the same shape, more workers than
// the op can feed change neither its workspace nor which workers compute.
inline int fed_workers(int workers, std::int64_t tasks, double flops) {
  const double by_work = std::max(1.0, flops / kWorkerFlops);
  const auto fed = static_cast<int>(std::min<double>(workers, by_work));
  return static_cast<int>(std::min<std::int64_t>(fed, std::max<std::int64_t>(1, tasks)));
}

// The bytes that make another worker worthwhile if an op does little more than read them: about 10
// us of a core.
inline constexpr std::int64_t kWorkerBytes = 256 * 1024;

// Returns how many of `workers` such an op uses.
inline int workers_of_bytes(int workers, std::int64_t bytes) {
  return static_cast<int>(std::clamp<std::int64_t>(bytes / kWorkerBytes, 1, workers));
}

// Returns the share of `worker` in the rest of a workspace behind `offset`, divided equally among
// the `workers` that an op uses. It is at least as large as the layout gave each worker, and
// 64-aligned.
inline std::span<std::byte> worker_share(const KernelContext& context, std::size_t offset,
                                         int workers, int worker) {
  TERRACE_CHECK_LE(offset, context.workspace.size());
  TERRACE_CHECK_LT(worker, workers);
  const std::size_t share =
      (context.workspace.size() - offset) / static_cast<std::size_t>(workers) / 64 * 64;
  return context.workspace.subspan(offset + share * static_cast<std::size_t>(worker), share);
}

// Returns the first `count` elements at `offset`.
template <typename T>
T* region_at(std::span<std::byte> bytes, std::size_t offset, std::int64_t count) {
  TERRACE_CHECK_LE(offset + static_cast<std::size_t>(count) * sizeof(T), bytes.size());
  return reinterpret_cast<T*>(bytes.data() + offset);
}

}  // namespace terrace

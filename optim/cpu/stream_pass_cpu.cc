#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/parallel_blocks.h"
#include "optim/stream_pass.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/cpu/stream_pass_cpu.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace terrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::CappedTag<std::uint8_t, 64>;
using ByteVec = hn::Vec<Bytes>;
inline constexpr std::size_t kStreamGroup = 64;  // elements: a line of bytes
inline constexpr std::size_t kStreamLine = 64;
inline constexpr std::size_t kStreamAhead = 1024;

// A line of an array; what was read is gathered in `seen`, so that no read can be left out.
HWY_INLINE void stream_line(std::uint8_t* line, StreamedArray::Access access, ByteVec change,
                            ByteVec& seen) {
  constexpr std::size_t kWidth = hn::MaxLanes(Bytes());
  if (access == StreamedArray::Access::kWrite) {
    for (std::size_t i = 0; i < kStreamLine; i += kWidth) hn::Stream(seen, Bytes(), line + i);
    return;
  }
  hwy::Prefetch(line + kStreamAhead);
  for (std::size_t i = 0; i < kStreamLine; i += kWidth) {
    const ByteVec value = hn::LoadU(Bytes(), line + i);
    if (access == StreamedArray::Access::kRead) {
      seen = hn::Or(seen, value);
    } else {
      hn::StoreU(hn::Xor(value, change), Bytes(), line + i);
    }
  }
}

std::uint8_t stream_range(std::span<const StreamedArray> arrays, std::uint8_t change,
                          std::int64_t begin, std::int64_t end) {
  const ByteVec changes = hn::Set(Bytes(), change);
  ByteVec seen = hn::Zero(Bytes());
  for (std::int64_t i = begin; i < end; i += static_cast<std::int64_t>(kStreamGroup)) {
    for (const StreamedArray& array : arrays) {
      const std::size_t width = array.bytes_per_element;
      auto* const data = reinterpret_cast<std::uint8_t*>(array.data);
      std::uint8_t* const group = data + static_cast<std::size_t>(i) * width;
      for (std::size_t at = 0; at < kStreamGroup * width; at += kStreamLine) {
        stream_line(group + at, array.access, changes, seen);
      }
    }
  }
  hwy::FlushStream();
  return hn::GetLane(seen);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(stream_range);

void stream_pass(const KernelContext& context, std::span<const StreamedArray> arrays,
                 std::int64_t elements) {
  TERRACE_CHECK_EQ(elements % 64, 0);
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    // Neither can be known beforehand, so nothing of the pass can be left out.
    const volatile std::uint8_t no_change = 0;
    const volatile std::uint8_t seen =
        HWY_DYNAMIC_DISPATCH(stream_range)(arrays, no_change, begin, end);
    static_cast<void>(seen);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE

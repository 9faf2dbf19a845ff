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

// Streams lines of an array that are treated alike. Everything that is read is gathered in `seen`,
// so that no read can be left out.
template <StreamedArray::Access Way, bool AsksAhead, bool PastCache>
HWY_INLINE void stream_lines(std::uint8_t* lines, std::size_t bytes, ByteVec change,
                             ByteVec& seen) {
  constexpr std::size_t kWidth = hn::MaxLanes(Bytes());
  for (std::size_t at = 0; at < bytes; at += kStreamLine) {
    if constexpr (AsksAhead && Way != StreamedArray::Access::kWrite) {
      hwy::Prefetch(lines + at + kStreamAhead);
    }
    for (std::size_t i = at; i < at + kStreamLine; i += kWidth) {
      if constexpr (Way == StreamedArray::Access::kRead) {
        seen = hn::Or(seen, hn::LoadU(Bytes(), lines + i));
      } else if constexpr (Way == StreamedArray::Access::kUpdate) {
        hn::StoreU(hn::Xor(hn::LoadU(Bytes(), lines + i), change), Bytes(), lines + i);
      } else if constexpr (PastCache) {
        hn::Stream(seen, Bytes(), lines + i);
      } else {
        hn::StoreU(seen, Bytes(), lines + i);
      }
    }
  }
}

template <bool AsksAhead, bool PastCache>
std::uint8_t stream_elements(std::span<const StreamedArray> arrays, std::uint8_t change,
                             std::int64_t begin, std::int64_t end) {
  using Access = StreamedArray::Access;
  const ByteVec changes = hn::Set(Bytes(), change);
  ByteVec seen = hn::Zero(Bytes());
  for (std::int64_t i = begin; i < end; i += static_cast<std::int64_t>(kStreamGroup)) {
    for (const StreamedArray& array : arrays) {
      const std::size_t bytes = kStreamGroup * array.bytes_per_element;
      auto* const data = reinterpret_cast<std::uint8_t*>(array.data);
      std::uint8_t* const group = data + static_cast<std::size_t>(i) * array.bytes_per_element;
      switch (array.access) {
        case Access::kRead:
          stream_lines<Access::kRead, AsksAhead, PastCache>(group, bytes, changes, seen);
          break;
        case Access::kUpdate:
          stream_lines<Access::kUpdate, AsksAhead, PastCache>(group, bytes, changes, seen);
          break;
        case Access::kWrite:
          stream_lines<Access::kWrite, AsksAhead, PastCache>(group, bytes, changes, seen);
          break;
      }
    }
  }
  hwy::FlushStream();
  return hn::GetLane(seen);
}

std::uint8_t stream_range(std::span<const StreamedArray> arrays, const StreamForm& form,
                          std::uint8_t change, std::int64_t begin, std::int64_t end) {
  if (form.asks_ahead && form.past_cache)
    return stream_elements<true, true>(arrays, change, begin, end);
  if (form.asks_ahead) return stream_elements<true, false>(arrays, change, begin, end);
  if (form.past_cache) return stream_elements<false, true>(arrays, change, begin, end);
  return stream_elements<false, false>(arrays, change, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace terrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace {

HWY_EXPORT(stream_range);

void stream_pass(const KernelContext& context, std::span<const StreamedArray> arrays,
                 std::int64_t elements, const StreamForm& form) {
  TERRACE_CHECK_EQ(elements % 64, 0);
  for_each_block(context, elements, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    // The compiler can know neither beforehand, so it cannot leave out any of the pass.
    const volatile std::uint8_t no_change = 0;
    const volatile std::uint8_t seen =
        HWY_DYNAMIC_DISPATCH(stream_range)(arrays, form, no_change, begin, end);
    static_cast<void>(seen);
  });
}

}  // namespace terrace
#endif  // HWY_ONCE

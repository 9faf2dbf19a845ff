#include "memory/host/streaming_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/bytes.h"
#include "base/check.h"

namespace terrace {

#if defined(__SSE2__)
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kAhead = 512;  // the prefetch distance, in bytes
constexpr std::size_t kSmall = 256 * kKiB;

// Writes a whole cache line of the target, so that it goes to memory in one transfer.
void copy_line(std::byte* target, const std::byte* source) {
  auto* to = reinterpret_cast<__m128i*>(target);
  const auto* from = reinterpret_cast<const __m128i*>(source);
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

}  // namespace

void streaming_copy(std::span<std::byte> target, std::span<const std::byte> source) {
  TERRACE_CHECK_EQ(target.size(), source.size());
  if (target.size() < kSmall) {
    if (!target.empty()) std::memcpy(target.data(), source.data(), target.size());
    return;
  }
  const std::size_t head =
      (kLine - reinterpret_cast<std::uintptr_t>(target.data()) % kLine) % kLine;
  std::memcpy(target.data(), source.data(), head);
  std::size_t at = head;
  for (; at + kLine <= target.size(); at += kLine) {
    // A prefetch does not count as an access, so it may go beyond the end of the source.
    _mm_prefetch(reinterpret_cast<const char*>(source.data() + at) + kAhead, _MM_HINT_NTA);
    copy_line(target.data() + at, source.data() + at);
  }
  _mm_sfence();
  if (at < target.size()) {
    std::memcpy(target.data() + at, source.data() + at, target.size() - at);
  }
}
#else
// Without these instructions, nothing is better than the C library's memcpy().
void streaming_copy(std::span<std::byte> target, std::span<const std::byte> source) {
  TERRACE_CHECK_EQ(target.size(), source.size());
  if (!target.empty()) std::memcpy(target.data(), source.data(), target.size());
}
#endif

}  // namespace terrace

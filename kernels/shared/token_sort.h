#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/shared/block.h"

// Positions sorted by their tokens, for the embedding's backward.
namespace terrace::shared {

// A stable sort by digits of 9 bits, lowest first: two passes for up to 262144 tokens. A chunk of
// positions is counted, and later placed, by one block: thread d handles digit d, and walks the
// chunk in order. Walks are short as long as there are as many chunks as a large GPU has
// multiprocessors.
inline constexpr int kDigitBits = 9;
inline constexpr int kDigits = 1 << kDigitBits;
inline constexpr int kSortChunkMin = 256;
inline constexpr int kSortChunkMax = 1024;

struct SortChunks {
  explicit SortChunks(std::int64_t elements)
      : positions(static_cast<int>(
            std::clamp<std::int64_t>(divide_up(elements, 128), kSortChunkMin, kSortChunkMax))),
        count(divide_up(elements, positions)) {}

  int positions;  // of a chunk
  std::int64_t count;
};

// The positions of the micro-batches, one micro-batch after the other, with `rows` positions in
// each.
struct SortedTokens {
  std::int32_t* tokens = nullptr;
  std::int32_t* positions = nullptr;
};

template <typename Block>
TERRACE_KERNEL void load_digits(Block& block, const std::int32_t* tokens, int count, int shift,
                                std::uint16_t* digits) {
  block.for_each_thread([&](int t) {
    for (int i = t; i < count; i += Block::kThreads) {
      digits[i] = static_cast<std::uint16_t>((tokens[i] >> shift) & (kDigits - 1));
    }
  });
  block.sync();
}

struct CountDigitsKernel {
  const std::int32_t* tokens;
  std::int32_t* counts;  // [chunks, kDigits]: a warp's threads have neighbours
  std::int64_t elements;
  SortChunks chunks;
  int shift;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const digits = reinterpret_cast<std::uint16_t*>(block.shared_memory());
    const std::int64_t first = block.index() * chunks.positions;
    const std::int64_t rest = elements - first;
    const int count = rest < chunks.positions ? static_cast<int>(rest) : chunks.positions;
    load_digits(block, tokens + first, count, shift, digits);
    block.for_each_thread([&](int t) {
      std::int32_t found = 0;
      for (int i = 0; i < count; ++i) found += digits[i] == t ? 1 : 0;
      counts[block.index() * kDigits + t] = found;
    });
  }
};

// The kernel that turns counts into the places where each (digit, chunk) begins. It runs as one
// block.
struct PlaceDigitsKernel {
  static constexpr int kCountsAtOnce = 16;  // loads that wait together
  static constexpr int kDigitsOfSum = 16;   // their total is added once for all digits after them
  static constexpr std::size_t kBytes = (kDigits + kDigits / kDigitsOfSum) * sizeof(std::int32_t);

  std::int32_t* counts;
  std::int64_t chunks;

  TERRACE_KERNEL static std::int32_t sum_of(const std::int32_t* values, int first, int count) {
    std::int32_t sum = 0;
    for (int i = 0; i < count; ++i) sum += values[first + i];
    return sum;
  }

  // Calls body(c, the digit's counts of the chunks [c, c + kCountsAtOnce)); counts past the last
  // chunk are 0.
  template <typename Body>
  TERRACE_KERNEL void for_each_counts(int digit, const Body& body) const {
    for (std::int64_t c = 0; c < chunks; c += kCountsAtOnce) {
      std::int32_t found[kCountsAtOnce];
      TERRACE_UNROLL
      for (int i = 0; i < kCountsAtOnce; ++i) {
        found[i] = c + i < chunks ? counts[(c + i) * kDigits + digit] : 0;
      }
      body(c, found);
    }
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const totals = reinterpret_cast<std::int32_t*>(block.shared_memory());
    block.for_each_thread([&](int t) {
      std::int32_t total = 0;
      for_each_counts(t, [&](std::int64_t, const std::int32_t* found) {
        TERRACE_UNROLL
        for (int i = 0; i < kCountsAtOnce; ++i) total += found[i];
      });
      totals[t] = total;
    });
    block.sync();
    std::int32_t* const sums = totals + kDigits;
    block.for_each_thread([&](int t) {
      if (t < kDigits / kDigitsOfSum) sums[t] = sum_of(totals, t * kDigitsOfSum, kDigitsOfSum);
    });
    block.sync();
    block.for_each_thread([&](int t) {
      const int before = t / kDigitsOfSum;
      std::int32_t place = sum_of(sums, 0, before);
      place += sum_of(totals, before * kDigitsOfSum, t % kDigitsOfSum);
      for_each_counts(t, [&](std::int64_t c, const std::int32_t* found) {
        TERRACE_UNROLL
        for (int i = 0; i < kCountsAtOnce; ++i) {
          if (c + i < chunks) counts[(c + i) * kDigits + t] = place;
          place += found[i];
        }
      });
    });
  }
};

// The kernel that moves positions to their places. The chunk is first copied to shared memory,
// because the threads of a warp walk it one after the other.
struct MoveDigitsKernel {
  SortedTokens from, to;
  const std::int32_t* places;
  std::int64_t elements;
  SortChunks chunks;
  int shift;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const tokens = reinterpret_cast<std::int32_t*>(block.shared_memory());
    std::int32_t* const positions = tokens + chunks.positions;
    const std::int64_t first = block.index() * chunks.positions;
    const std::int64_t rest = elements - first;
    const int count = rest < chunks.positions ? static_cast<int>(rest) : chunks.positions;
    block.for_each_thread([&](int t) {
      for (int i = t; i < count; i += Block::kThreads) {
        tokens[i] = from.tokens[first + i];
        positions[i] = from.positions[first + i];
      }
    });
    block.sync();
    block.for_each_thread([&](int t) {
      std::int64_t place = places[block.index() * kDigits + t];
      for (int i = 0; i < count; ++i) {
        if (((tokens[i] >> shift) & (kDigits - 1)) != t) continue;
        to.tokens[place] = tokens[i];
        to.positions[place] = positions[i];
        ++place;
      }
    });
  }
};

// The positions to sort, and memory to sort them in.
struct SortSpace {
  SortedTokens tokens;
  SortedTokens other;    // of the same size
  std::int32_t* counts;  // of CountDigitsKernel
};

// Sorts by token, where no token is above `token_max`, and returns where the result is: `tokens` or
// `other`.
template <typename Launcher>
SortedTokens sort_tokens(Launcher& launcher, const SortSpace& space, std::int64_t elements,
                         std::int64_t token_max) {
  SortedTokens from = space.tokens;
  SortedTokens to = space.other;
  std::int32_t* const counts = space.counts;
  const SortChunks chunks(elements);
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(token_max)));
  for (int shift = 0; shift < bits; shift += kDigitBits) {
    launcher.template launch<kDigits>(
        "embedding_backward", CountDigitsKernel{from.tokens, counts, elements, chunks, shift},
        chunks.count, static_cast<std::size_t>(chunks.positions) * sizeof(std::uint16_t));
    launcher.template launch<kDigits>("embedding_backward", PlaceDigitsKernel{counts, chunks.count},
                                      1, PlaceDigitsKernel::kBytes);
    launcher.template launch<kDigits>(
        "embedding_backward", MoveDigitsKernel{from, to, counts, elements, chunks, shift},
        chunks.count, 2 * static_cast<std::size_t>(chunks.positions) * sizeof(std::int32_t));
    const SortedTokens sorted = to;
    to = from;
    from = sorted;
  }
  return from;
}

}  // namespace terrace::shared

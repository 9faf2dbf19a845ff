#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/shared/map.h"

// The sum over ranks, once all their numbers are in one place.
namespace terrace::shared {

template <typename T>
struct RankSumBody {
  const T* parts;
  T* sum;
  std::int64_t elements;  // of a part
  int ranks;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, int count) const {
    const auto of_rank = [&](int rank) {
      return load_words(parts + rank * elements + first, count, aligned);
    };
    Floats<kPackOf<T>> sums;
    const auto zero = of_rank(0);
    TERRACE_UNROLL
    for (int i = 0; i < kPackOf<T>; ++i) sums.at[i] = zero.value(i);
    for (int rank = 1; rank < ranks; ++rank) {
      const auto next = of_rank(rank);
      TERRACE_UNROLL
      for (int i = 0; i < kPackOf<T>; ++i) sums.at[i] += next.value(i);
    }
    store_words(sum + first, round_words<T>(sums), count, aligned);
  }
};

// sum = ((parts[0] + parts[1]) + parts[2]) + ..., of parts [ranks, n], in fp32, rounded once to
// nearest even: the bits of reduce_in_rank_order() (parallel/rank_order.h), except for NaN.
template <typename Launcher>
void add_ranks(Launcher& launcher, const TensorView& sum, const std::byte* parts, int ranks) {
  with_compute_type(sum.dtype, [&]<typename T>(std::type_identity<T>) {
    const std::int64_t n = sum.elements();
    const bool aligned = may_load_packs({parts, sum.data}, static_cast<std::size_t>(n) * sizeof(T));
    const RankSumBody<T> body{reinterpret_cast<const T*>(parts), sum.as<T>(), n, ranks, aligned};
    launch_map<kPackOf<T>>(launcher, "add_ranks", 1, n, body);
  });
}

}  // namespace terrace::shared

#include "parallel/rank_order.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/half.h"
#include "kernels/cpu/cpu_sum_bf16.h"

namespace terrace {
namespace {

// The elements whose results are kept in the nearest cache while the ranks' values are read. The
// loops run this many times whenever they can, because compilers vectorise loops of such a length.
constexpr std::size_t kBlock = 1024;

struct F32 {
  using Stored = float;
  using Wide = float;
  static Wide widen(Stored value) { return value; }
  static Stored narrow(Wide value) { return value; }
};
struct F64 {
  using Stored = double;
  using Wide = double;
  static Wide widen(Stored value) { return value; }
  static Stored narrow(Wide value) { return value; }
};
struct Brain16 {
  using Stored = Bf16;
  using Wide = float;
  static Wide widen(Stored value) { return to_float(value); }
  static Stored narrow(Wide value) { return to_bf16_nearest_even(value); }
};
struct Half16 {
  using Stored = Fp16;
  using Wide = float;
  static Wide widen(Stored value) { return to_float(value); }
  static Stored narrow(Wide value) { return to_fp16_nearest_even(value); }
};
// Unsigned internally, so that sums wrap.
struct I32 {
  using Stored = std::int32_t;
  using Wide = std::uint32_t;
  static Wide widen(Stored value) { return static_cast<Wide>(value); }
  static Stored narrow(Wide value) { return static_cast<Stored>(value); }
};

template <typename Type, ReduceOp Op>
typename Type::Wide join(typename Type::Wide a, typename Type::Wide b) {
  if constexpr (Op == ReduceOp::kSum) {
    return a + b;
  } else if constexpr (std::is_same_v<Type, I32>) {
    return I32::narrow(a) > I32::narrow(b) ? a : b;
  } else {
    return a > b || a != a ? a : b;  // a NaN stays, on either side
  }
}

// Compiles the code once for each vector width, and chooses when the program starts. The bits are
// the same for all widths, since no operation is contracted. Sanitizers cannot check code that runs
// that early.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TERRACE_EVERY_VECTOR_WIDTH \
  __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define TERRACE_EVERY_VECTOR_WIDTH
#endif

// Reduces one block: `count` elements from `first` on.
template <typename Type, ReduceOp Op>
TERRACE_EVERY_VECTOR_WIDTH void reduce_block(std::span<std::byte* const> targets,
                                             std::span<const std::byte* const> sources,
                                             std::size_t first, std::size_t count) {
  using Stored = typename Type::Stored;
  using Wide = typename Type::Wide;
  const auto of_rank = [&](std::size_t rank) {
    return reinterpret_cast<const Stored*>(sources[rank]) + first;
  };
  alignas(64) std::array<Wide, kBlock> sums;
  const Stored* zero = of_rank(0);
  if (sources.size() == 1) {
    for (std::size_t i = 0; i < count; ++i) sums[i] = Type::widen(zero[i]);
  } else {
    const Stored* one = of_rank(1);
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] = join<Type, Op>(Type::widen(zero[i]), Type::widen(one[i]));
    }
  }
  for (std::size_t rank = 2; rank < sources.size(); ++rank) {
    const Stored* next = of_rank(rank);
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] = join<Type, Op>(sums[i], Type::widen(next[i]));
    }
  }
  const auto store = [&](const void* results) {
    for (std::byte* target : targets) {
      std::memcpy(target + first * sizeof(Stored), results, count * sizeof(Stored));
    }
  };
  if constexpr (std::is_same_v<Stored, Wide>) {
    store(sums.data());
  } else {
    alignas(64) std::array<Stored, kBlock> rounded;
    for (std::size_t i = 0; i < count; ++i) rounded[i] = Type::narrow(sums[i]);
    store(rounded.data());
  }
}

// Reduces one block of a host's part: `count` elements from `first` on.
template <typename Type, ReduceOp Op>
TERRACE_EVERY_VECTOR_WIDTH void reduce_host_block(const HostReduction& part, std::size_t first,
                                                  std::size_t count) {
  using Stored = typename Type::Stored;
  using Wide = typename Type::Wide;
  const auto of_source = [&](std::size_t source) {
    return reinterpret_cast<const Stored*>(part.sources[source]) + first;
  };
  alignas(64) std::array<Wide, kBlock> sums;
  std::size_t next = 0;
  if (part.before != nullptr) {
    std::memcpy(sums.data(), part.before + first * sizeof(Wide), count * sizeof(Wide));
  } else {
    const Stored* zero = of_source(next++);
    for (std::size_t i = 0; i < count; ++i) sums[i] = Type::widen(zero[i]);
  }
  for (; next < part.sources.size(); ++next) {
    const Stored* values = of_source(next);
    for (std::size_t i = 0; i < count; ++i)
      sums[i] = join<Type, Op>(sums[i], Type::widen(values[i]));
  }
  if (!part.is_last) {
    std::memcpy(part.target + first * sizeof(Wide), sums.data(), count * sizeof(Wide));
    return;
  }
  alignas(64) std::array<Stored, kBlock> rounded;
  for (std::size_t i = 0; i < count; ++i) rounded[i] = Type::narrow(sums[i]);
  std::memcpy(part.target + first * sizeof(Stored), rounded.data(), count * sizeof(Stored));
}

template <typename Type, ReduceOp Op>
void reduce_host(const HostReduction& part, std::size_t elements) {
  std::size_t first = 0;
  for (; first + kBlock <= elements; first += kBlock) {
    reduce_host_block<Type, Op>(part, first, kBlock);
  }
  if (first < elements) reduce_host_block<Type, Op>(part, first, elements - first);
}

template <typename Type>
void reduce_host_by(ReduceOp op, const HostReduction& part, std::size_t elements) {
  if (op == ReduceOp::kSum) {
    reduce_host<Type, ReduceOp::kSum>(part, elements);
  } else {
    reduce_host<Type, ReduceOp::kMax>(part, elements);
  }
}

[[noreturn]] void fail_without_arithmetic(DType dtype) {
  check_failed(__FILE__, __LINE__, "a dtype with arithmetic", std::string(name_of(dtype)));
}

template <typename Type, ReduceOp Op>
void reduce(std::span<std::byte* const> targets, std::span<const std::byte* const> sources,
            std::size_t elements) {
  std::size_t first = 0;
  for (; first + kBlock <= elements; first += kBlock) {
    reduce_block<Type, Op>(targets, sources, first, kBlock);
  }
  if (first < elements) reduce_block<Type, Op>(targets, sources, first, elements - first);
}

template <typename Type>
void reduce_by(ReduceOp op, std::span<std::byte* const> targets,
               std::span<const std::byte* const> sources, std::size_t elements) {
  if (op == ReduceOp::kSum) {
    reduce<Type, ReduceOp::kSum>(targets, sources, elements);
  } else {
    reduce<Type, ReduceOp::kMax>(targets, sources, elements);
  }
}

}  // namespace

void reduce_in_rank_order(std::span<std::byte* const> targets,
                          std::span<const std::byte* const> sources, std::size_t elements,
                          DType dtype, ReduceOp op) {
  TERRACE_CHECK(!sources.empty());
  switch (dtype) {
    case DType::kF32:
      return reduce_by<F32>(op, targets, sources, elements);
    case DType::kBF16:
      if (op == ReduceOp::kSum) return sum_bf16_in_order(targets, sources, elements);
      return reduce_by<Brain16>(op, targets, sources, elements);
    case DType::kF16:
      return reduce_by<Half16>(op, targets, sources, elements);
    case DType::kF64:
      return reduce_by<F64>(op, targets, sources, elements);
    case DType::kI32:
      return reduce_by<I32>(op, targets, sources, elements);
    case DType::kI16:
    case DType::kU8:
      break;
  }
  fail_without_arithmetic(dtype);
}

DType sum_type(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

void reduce_on_host(const HostReduction& part, std::size_t elements, DType dtype, ReduceOp op) {
  TERRACE_CHECK(!part.sources.empty());
  switch (dtype) {
    case DType::kF32:
      return reduce_host_by<F32>(op, part, elements);
    case DType::kBF16:
      return reduce_host_by<Brain16>(op, part, elements);
    case DType::kF16:
      return reduce_host_by<Half16>(op, part, elements);
    case DType::kF64:
      return reduce_host_by<F64>(op, part, elements);
    case DType::kI32:
      return reduce_host_by<I32>(op, part, elements);
    case DType::kI16:
    case DType::kU8:
      break;
  }
  fail_without_arithmetic(dtype);
}

}  // namespace terrace

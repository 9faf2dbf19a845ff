#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "parallel/communicator.h"

// The arithmetic of collectives on host memory.
namespace terrace {

// Data sent in pieces is cut at multiples of this.
inline constexpr std::size_t kCacheLineBytes = 64;

// Computes targets[t][i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) ..., for `elements`
// elements of `dtype`. bf16 and fp16 are computed in fp32 and rounded once to nearest even. Every
// target gets the same result. A target may be a source; otherwise they do not overlap. There is at
// least one source. Any thread.
void reduce_in_rank_order(std::span<std::byte* const> targets,
                          std::span<const std::byte* const> sources, std::size_t elements,
                          DType dtype, ReduceOp op);

// Returns the type in which values of `dtype` are added: fp32 for bf16 and fp16, else `dtype`.
DType sum_type(DType dtype);

// The part of a reduction in rank order that one host carries out: what the hosts before it have
// reduced, joined with the sources of its own ranks.
struct HostReduction {
  std::byte* target = nullptr;
  bool is_last = false;  // whether this is the last host: the target has `dtype`, else sum_type()
  const std::byte* before = nullptr;  // in sum_type(); null on the first host
  std::span<const std::byte* const> sources;
};

// Computes a host's part. Over all hosts in turn the results have the bits of
// reduce_in_rank_order(). The target may be `before` or, if it has the type of
// the sources, a source; otherwise they do not overlap.
// There is at least one source. Any thread.
void reduce_on_host(const HostReduction& part, std::size_t elements, DType dtype, ReduceOp op);

}  // namespace terrace

#pragma once

#include <cstddef>
#include <memory>

#include "memory/device.h"
#include "parallel/communicator.h"

namespace terrace {

// What sums over ranks need of a device, beside its communicators. Calls enqueue on the stream and
// return.
class DeviceArithmetic {
 public:
  virtual ~DeviceArithmetic() = default;
  // Throws OutOfMemory.
  virtual std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) = 0;
  // sum[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ..., where `parts` has the numbers of
  // one rank behind those of another: bf16 or fp16, in fp32, rounded once to nearest even.
  virtual void add_ranks(const TensorView& sum, const std::byte* parts, int ranks,
                         NativeStream stream) = 0;
  // Copies the rows of the source to the target, one behind another.
  virtual void pack_rows(std::byte* target, const StridedRows& source, NativeStream stream) = 0;
};

// Of each of the two pieces of device memory that a communicator has for its sums.
inline constexpr std::size_t kRankSumPieceBytes = std::size_t{16} << 20;

// `devices`, a communicator of device memory whose own sums of bf16 and fp16 round after every
// addition (NCCL's), with such sums as parallel/communicator.h says they are, in rank order too: an
// all_to_all of the parts, piece by piece, the arithmetic, and for all_reduce an all_gather. That
// is what a ring sends. All other calls are those of `devices`, and so is every call of two ranks,
// where there is one addition. Calls run one after another, on one stream or ordered by the caller:
// they use the same pieces. Communicators split from it add likewise. What fails is named as the
// call of `devices` that failed. Throws OutOfMemory where there is no room for the pieces.
std::unique_ptr<Communicator> make_rank_order_sums(std::unique_ptr<Communicator> devices,
                                                   std::shared_ptr<DeviceArithmetic> arithmetic,
                                                   std::size_t piece_bytes = kRankSumPieceBytes);

}  // namespace terrace

#pragma once

#include <cstddef>
#include <memory>

#include "memory/device.h"
#include "parallel/communicator.h"

namespace terrace {

// The arithmetic that sums over ranks need on a device, in addition to its communicators. Calls
// enqueue on the stream and return.
class DeviceArithmetic {
 public:
  virtual ~DeviceArithmetic() = default;
  // Throws OutOfMemory.
  virtual std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) = 0;
  // Computes sum[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ..., where `parts` has the
  // numbers of one rank after those of another. They are bf16 or fp16, are added in fp32, and are
  // rounded once to nearest even.
  virtual void add_ranks(const TensorView& sum, const std::byte* parts, int ranks,
                         NativeStream stream) = 0;
  // Copies the rows of the source to the target, one after another.
  virtual void pack_rows(std::byte* target, const StridedRows& source, NativeStream stream) = 0;
};

// The size of each of the two pieces of device memory that a communicator has for its sums.
inline constexpr std::size_t kRankSumPieceBytes = std::size_t{16} << 20;

// Wraps `devices`, a communicator of device memory whose own sums of bf16 and fp16 round after
// every addition (NCCL's). The result adds them as parallel/communicator.h says, in rank order too:
// by an all_to_all of the parts, piece by piece, then the arithmetic, and for all_reduce an
// all_gather. That sends as much as a ring does. All other calls go to `devices`; so does every
// call of two ranks, where there is only one addition. Calls run one after another, on one stream
// or ordered by the caller, because they use the same pieces. Communicators split from it add in
// the same way. An error is named as the call of `devices` that failed. Throws OutOfMemory where
// there is no room for the pieces.
std::unique_ptr<Communicator> make_rank_order_sums(std::unique_ptr<Communicator> devices,
                                                   std::shared_ptr<DeviceArithmetic> arithmetic,
                                                   std::size_t piece_bytes = kRankSumPieceBytes);

}  // namespace terrace

#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "parallel/communicator.h"
#include "parallel/launch_environment.h"

// Ranks with a GPU each, connected by NCCL. Every build has this header; in a build without CUDA
// its functions refuse.
namespace terrace {

// Device memory that arenas leave free where ranks have communicators: NCCL takes some for each
// communicator when it is first used. An estimate.
inline constexpr std::size_t kNcclMarginBytes = std::size_t{1} << 30;

// Returns whether NCCL adds numbers of this type over `ranks` ranks as parallel/communicator.h
// says, apart from the order. NCCL rounds narrow types after every addition.
constexpr bool nccl_adds(DType type, int ranks) {
  return ranks <= 2 || (type != DType::kBF16 && type != DType::kF16);
}

// Makes a communicator of the ranks of `meeting` (MPI, or threads), for the device memory of GPU
// `ordinal`. All ranks call it in the same order. Only NCCL's id goes over `meeting`, which
// outlives the result and everything split from it. An abort of one also aborts the other, on this
// rank within 100 ms. Throws CommError where the ranks do not come together within the timeout, and
// EnvironmentError in a build without CUDA.
//
// Calls enqueue on the stream given and return. Calls that NCCL cannot do as
// parallel/communicator.h says are refused by name, with CommError: sums for which nccl_adds() is
// false (make_rank_order_sums() has them), and maxima of floating-point numbers (NCCL drops NaN).
// An all_reduce is a reduce_scatter and an all_gather of whole parts; the elements left over, fewer
// than there are ranks, are reduced by themselves.
//
// A thread watches the calls that are under way. A call that is not complete when the timeout has
// passed since its stream came to it, and an error that NCCL reports, abort this rank's
// communicators made together and `meeting`. Their calls on the GPU end, and the next call here
// throws CommError with the reason. If ranks make different calls, that is noticed only at the
// timeout.
//
// Communicators made together are given back to NCCL with the last of them. That waits until the
// other ranks give theirs back too, but no longer than the timeout. A communicator that is
// destroyed while an exception is on its way aborts them, but not `meeting`: the code that catches
// the exception tells the other ranks why.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& meeting, const std::string& name,
                                                     int ordinal,
                                                     const CommunicatorOptions& options = {});

// The same for the ranks of a job that only its launcher connects (torchrun). NCCL's id goes over
// the rendezvous (parallel/rendezvous.h). There is no other communicator to be aborted, so the
// other ranks learn of a rank's end by their own watch.
std::unique_ptr<Communicator> make_nccl_world(const LaunchEnvironment& launch,
                                              const std::string& name, int ordinal,
                                              const CommunicatorOptions& options = {});

// Returns the library that is loaded, e.g. "NCCL 2.28.9". Empty in a build without CUDA.
std::string nccl_version();

}  // namespace terrace

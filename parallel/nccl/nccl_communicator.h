#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "parallel/communicator.h"
#include "parallel/launch_environment.h"

// Ranks with a GPU each, by NCCL. The header is there in every build; in one without CUDA the
// function refuses.
namespace terrace {

// Device memory kept free of arenas where ranks have communicators: NCCL takes some for each, when
// it is first used. An estimate.
inline constexpr std::size_t kNcclMarginBytes = std::size_t{1} << 30;

// Whether NCCL adds numbers of this type over so many ranks as parallel/communicator.h says, but
// for the order: it rounds narrow ones after every addition.
constexpr bool nccl_adds(DType type, int ranks) {
  return ranks <= 2 || (type != DType::kBF16 && type != DType::kF16);
}

// A communicator of the ranks of `meeting` (MPI, or threads), of device memory of GPU `ordinal`.
// All ranks call it in the same order; only NCCL's id goes over `meeting`, which outlives it and
// what is split from it: what aborts one aborts the other, of this rank within 100 ms. Throws
// CommError where the ranks do not come together within the timeout, EnvironmentError in a build
// without CUDA.
//
// Calls enqueue on the stream given and return. What NCCL cannot do as parallel/communicator.h says
// is refused by name, with CommError: sums that are not nccl_adds() (make_rank_order_sums() has
// them), and maxima of floating-point numbers (it drops NaN). all_reduce is
// reduce_scatter and all_gather of whole parts; the elements that are left, fewer than ranks, are
// reduced by themselves.
//
// A thread watches the calls that are under way: one that is not complete when the timeout has
// passed since its stream came to it, and an error that NCCL reports, abort this rank's
// communicators made together and `meeting`. Their calls on the GPU end, and the next call here
// throws CommError with the reason. That ranks make different calls is not noticed before the
// timeout.
//
// Communicators made together are given back to NCCL with the last of them, which waits for the
// other ranks to come to that too, no longer than the timeout. One that goes while an exception is
// on its way aborts them, but not `meeting`: who catches it tells the others why.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& meeting, const std::string& name,
                                                     int ordinal,
                                                     const CommunicatorOptions& options = {});

// Of the ranks of a job that only its launcher connects (torchrun): NCCL's id goes over the
// rendezvous (parallel/rendezvous.h), and no other communicator is there to be aborted, so that a
// rank's end is known to the others by their own watch. Otherwise as above.
std::unique_ptr<Communicator> make_nccl_world(const LaunchEnvironment& launch,
                                              const std::string& name, int ordinal,
                                              const CommunicatorOptions& options = {});

// "NCCL 2.28.9": the library that is loaded. Empty in a build without CUDA.
std::string nccl_version();

}  // namespace terrace

#pragma once

#include <memory>
#include <string>

#include "parallel/communicator.h"

// Ranks with a GPU each, by NCCL. The header is there in every build; in one without CUDA the
// function refuses.
namespace terrace {

// A communicator of the ranks of `meeting` (MPI, or threads), of device memory of GPU `ordinal`.
// All ranks call it in the same order; only NCCL's id goes over `meeting`. Throws CommError where
// the ranks do not come together within the timeout, EnvironmentError in a build without CUDA.
//
// Calls enqueue on the stream given and return. What NCCL cannot do as parallel/communicator.h says
// is refused by name, with CommError: sums of bf16 and fp16 over more than two ranks (NCCL rounds
// after every addition) and maxima of floating-point numbers (it drops NaN). all_reduce is
// reduce_scatter and all_gather of whole parts; the elements that are left, fewer than ranks, are
// reduced by themselves.
//
// A thread watches the calls that are under way: one that is not complete after the timeout, and an
// error that NCCL reports, abort this process's communicators made together; their calls on the GPU
// end, and the next call here throws CommError with the reason. The other ranks learn it from their
// own watch. That ranks make different calls is not noticed before the timeout.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& meeting, const std::string& name,
                                                     int ordinal,
                                                     const CommunicatorOptions& options = {});

// "NCCL 2.28.9": the library that is loaded. Empty in a build without CUDA.
std::string nccl_version();

}  // namespace terrace

#pragma once

#include <memory>

#include "runtime/session/memory_loan.h"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace terrace {

// Returns a loan as a managed tensor of DLPack, whose deleter ends the loan.
DLManagedTensorVersioned* make_dlpack_lease(std::unique_ptr<MemoryLoan> loan);
// Returns the same lease in the form that DLPack had before versions; it replaces the given form.
// Throws SessionError for a lease that make_dlpack_lease() has not made, and for read-only memory,
// which the old form cannot express.
DLManagedTensor* unversioned(DLManagedTensorVersioned* lease);
// Ends the lease in a PyCapsule that has not been consumed. A consumer gives a capsule another
// name.
void end_capsule(void* capsule) noexcept;

}  // namespace terrace

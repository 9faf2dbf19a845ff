#pragma once

#include <memory>

#include "runtime/session/memory_loan.h"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace terrace {

// Hands a loan out as a managed tensor of DLPack, whose deleter ends it.
DLManagedTensorVersioned* make_dlpack_lease(std::unique_ptr<MemoryLoan> loan);
// The same lease as DLPack had it before versions, in the other's place. Throws SessionError for
// one that is not of make_dlpack_lease(), and for memory that is to be read only, which the old
// form cannot say.
DLManagedTensor* unversioned(DLManagedTensorVersioned* lease);
// Ends the lease in a PyCapsule that nobody has consumed; a consumer gives a capsule another name.
void end_capsule(void* capsule) noexcept;

}  // namespace terrace

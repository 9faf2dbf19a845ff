#include "runtime/capi/dlpack_lease.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/session/session_error.h"

// The binary layout of DLPack 1.0 (dmlc/dlpack, include/dlpack/dlpack.h), which all of its versions
// 1.x keep. The names are the specification's. NOLINTBEGIN(readability-identifier-naming)
struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

struct DLDevice {
  std::int32_t device_type;  // DLDeviceType
  std::int32_t device_id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DLTensor dl_tensor;
};
// NOLINTEND(readability-identifier-naming)

static_assert(sizeof(void*) == 8 && sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64 &&
              sizeof(DLManagedTensorVersioned) == 80);

namespace terrace {
namespace {

constexpr std::int32_t kDlCpu = 1;
constexpr std::uint8_t kDlFloat = 2;
constexpr std::uint8_t kDlBfloat = 4;
constexpr std::uint64_t kDlReadOnly = 1;

// Both forms of a lease. The consumer has one of them.
struct Lease {
  explicit Lease(std::unique_ptr<MemoryLoan> given)
      : loan(std::move(given)), shape(loan->elements().shape), strides(shape.size()) {
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      strides[i] = stride;
      stride *= shape[i];
    }
  }

  const std::unique_ptr<MemoryLoan> loan;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  const pid_t owner = getpid();
  DLManagedTensorVersioned versioned = {};
  DLManagedTensor plain = {};
};

// Ends a lease, unless a forked process calls it: that has a copy of the lease, but not the
// session's memory, and would unmap addresses that something else may use by then.
void end_lease(void* lease) noexcept {
  auto* const own = static_cast<Lease*>(lease);
  if (own->owner == getpid()) delete own;
}

void delete_versioned(DLManagedTensorVersioned* self) { end_lease(self->manager_ctx); }
void delete_plain(DLManagedTensor* self) { end_lease(self->manager_ctx); }

}  // namespace

DLManagedTensorVersioned* make_dlpack_lease(std::unique_ptr<MemoryLoan> loan) {
  auto lease = std::make_unique<Lease>(std::move(loan));
  const MemoryLoan::Elements& elements = lease->loan->elements();
  const bool is_bf16 = elements.dtype == DType::kBF16;
  const DLTensor tensor = {
      .data = elements.data,
      .device = {kDlCpu, 0},
      .ndim = static_cast<std::int32_t>(lease->shape.size()),
      .dtype = {is_bf16 ? kDlBfloat : kDlFloat, static_cast<std::uint8_t>(is_bf16 ? 16 : 32), 1},
      .shape = lease->shape.data(),
      .strides = lease->strides.data(),
      .byte_offset = 0};
  lease->versioned = {.version = {1, 0},
                      .manager_ctx = lease.get(),
                      .deleter = delete_versioned,
                      .flags = elements.is_read_only ? kDlReadOnly : 0,
                      .dl_tensor = tensor};
  lease->plain = {.dl_tensor = tensor, .manager_ctx = lease.get(), .deleter = delete_plain};
  return &lease.release()->versioned;
}

DLManagedTensor* unversioned(DLManagedTensorVersioned* lease) {
  if (lease->deleter != delete_versioned) {
    throw SessionError(SessionProblem::kArgument, "the lease was not made by Terrace",
                       "give a lease from terrace_gradient_lease() or terrace_unit_lease()");
  }
  if ((lease->flags & kDlReadOnly) != 0) {
    throw SessionError(SessionProblem::kUnsupported,
                       "read-only memory cannot be exported in the form of DLPack before 1.0",
                       "use a consumer of DLPack 1.0 or later");
  }
  return &static_cast<Lease*>(lease->manager_ctx)->plain;
}

// Both functions of Python that it calls do not touch an exception that is being raised (Python's C
// API, Capsules).
void end_capsule(void* capsule) noexcept {
  using IsValid = int(void*, const char*);
  using GetPointer = void*(void*, const char*);
  auto* const is_valid = reinterpret_cast<IsValid*>(dlsym(RTLD_DEFAULT, "PyCapsule_IsValid"));
  auto* const get_pointer =
      reinterpret_cast<GetPointer*>(dlsym(RTLD_DEFAULT, "PyCapsule_GetPointer"));
  if (is_valid == nullptr || get_pointer == nullptr) return;
  if (is_valid(capsule, "dltensor_versioned") != 0) {
    auto* const lease =
        static_cast<DLManagedTensorVersioned*>(get_pointer(capsule, "dltensor_versioned"));
    lease->deleter(lease);
  } else if (is_valid(capsule, "dltensor") != 0) {
    auto* const lease = static_cast<DLManagedTensor*>(get_pointer(capsule, "dltensor"));
    lease->deleter(lease);
  }
}

}  // namespace terrace

#include "base/error.h"
#include "memory/cuda/cuda_device.h"
#include "memory/cuda/host_registration.h"
#include "memory/cuda/plain_copies.h"

// For builds without CUDA.
namespace terrace {
namespace {

[[noreturn]] void refuse() {
  throw EnvironmentError("this program was built without CUDA",
                         "install the CUDA toolkit and build the preset cuda");
}

}  // namespace

bool is_cuda_built() { return false; }
int cuda_device_count() noexcept { return 0; }
bool cuda_device_computes(int /*ordinal*/) noexcept { return false; }
std::size_t cuda_capacity_bytes(int /*ordinal*/) { refuse(); }
std::string cuda_pci_address(int /*ordinal*/) { refuse(); }
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& /*options*/) { refuse(); }
std::string describe_cuda_device(int /*ordinal*/) { refuse(); }

std::unique_ptr<CopyLoad> make_cuda_plain_copies(LockedMemory /*memory*/,
                                                 const PlainCopyOptions& /*options*/) {
  refuse();
}

HostRegistration::HostRegistration(std::span<std::byte> /*memory*/) { refuse(); }
HostRegistration::~HostRegistration() = default;

}  // namespace terrace

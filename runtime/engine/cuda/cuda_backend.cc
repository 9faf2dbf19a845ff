#include <cstdlib>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_products.h"
#include "kernels/cuda/cuda_rank_sum.h"
#include "kernels/cuda/cudnn_attention.h"
#include "memory/cuda/cuda_device.h"
#include "optim/cuda/update_cuda.h"
#include "parallel/nccl/nccl_communicator.h"
#include "parallel/rank_order_sums.h"
#include "runtime/engine/compute_backend.h"

namespace terrace {
namespace {

class CudaComputeDevice final : public ComputeDevice {
 public:
  CudaComputeDevice(int ordinal, std::size_t capacity_bytes)
      : device_(make_cuda_device({.ordinal = ordinal, .capacity_bytes = capacity_bytes})),
        attention_(attention_choice(std::getenv("TERRACE_ATTENTION"))) {}

  Device& device() override { return *device_; }
  LaneKernels kernels() override {
    return {&cuda_kernels(), &update_cuda, &products_, &attention_};
  }
  std::unique_ptr<HostRegistration> lock(std::span<std::byte> host_memory) override {
    return std::make_unique<HostRegistration>(host_memory);
  }

 private:
  const std::unique_ptr<Device> device_;
  CudaProducts products_;  // on the GPU, which device_ has made current
  CudnnAttention attention_;
};

// The arithmetic of a communicator and of all communicators that are split from it. The memory that
// it allocates comes from the memory that arenas leave to NCCL.
class CudaArithmetic final : public DeviceArithmetic {
 public:
  explicit CudaArithmetic(int ordinal)
      : device_(make_cuda_device({.ordinal = ordinal, .capacity_bytes = kNcclMarginBytes / 4})) {}

  std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) override {
    return device_->allocate(size_bytes);
  }
  void add_ranks(const TensorView& sum, const std::byte* parts, int ranks,
                 NativeStream stream) override {
    cuda_add_ranks(sum, parts, ranks, stream);
  }
  void pack_rows(std::byte* target, const StridedRows& source, NativeStream stream) override {
    cuda_pack_rows(target, source, stream);
  }

 private:
  const std::unique_ptr<Device> device_;
};

class NcclExchange final : public DeviceExchange {
 public:
  explicit NcclExchange(int ordinal) : ordinal_(ordinal) {}

  std::unique_ptr<Communicator> make_communicator(
      Communicator& meeting, const CommunicatorOptions& options) const override {
    return make_rank_order_sums(make_nccl_communicator(meeting, meeting.name(), ordinal_, options),
                                std::make_shared<CudaArithmetic>(ordinal_));
  }

 private:
  const int ordinal_;
};

class CudaBackend final : public ComputeBackend {
 public:
  explicit CudaBackend(int ordinal) : ordinal_(ordinal), exchange_(ordinal) {}

  const KernelTable& kernels() const override { return cuda_kernels(); }
  std::unique_ptr<ComputeDevice> make(std::size_t capacity_bytes) const override {
    return std::make_unique<CudaComputeDevice>(ordinal_, capacity_bytes);
  }
  const DeviceExchange* exchange() const override { return &exchange_; }

 private:
  const int ordinal_;
  const NcclExchange exchange_;
};

}  // namespace

std::unique_ptr<ComputeBackend> make_cuda_backend(int ordinal) {
  return std::make_unique<CudaBackend>(ordinal);
}

}  // namespace terrace

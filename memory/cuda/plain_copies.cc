#include "memory/cuda/plain_copies.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/cuda/cuda_error.h"
#include "memory/cuda/host_registration.h"
#include "memory/host/host_memory.h"

namespace terrace {
namespace {

// Memory that cudaHostAlloc page-locks.
class AllocatedMemory {
 public:
  explicit AllocatedMemory(std::size_t size_bytes) : size_bytes_(size_bytes) {
    const cudaError_t error = cudaHostAlloc(&data_, size_bytes, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not sticky
      throw OutOfMemory(
          fmt::format("the system cannot lock {} of host memory", format_size(size_bytes)),
          "measure a smaller size");
    }
    check_cuda(error, "cudaHostAlloc");
  }
  ~AllocatedMemory() { cudaFreeHost(data_); }
  AllocatedMemory(const AllocatedMemory&) = delete;
  AllocatedMemory& operator=(const AllocatedMemory&) = delete;

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), size_bytes_}; }

 private:
  void* data_ = nullptr;
  const std::size_t size_bytes_;
};

class RegisteredMemory {
 public:
  explicit RegisteredMemory(const PlainCopyOptions& options)
      : memory_(options.size_bytes, HostMemoryOptions{.numa_nodes = options.numa_nodes}),
        registration_(memory_.bytes()) {}

  std::span<std::byte> bytes() const { return memory_.bytes(); }

 private:
  const HostMemory memory_;
  const HostRegistration registration_;
};

class PlainDeviceMemory {
 public:
  explicit PlainDeviceMemory(std::size_t size_bytes) : size_bytes_(size_bytes) {
    const cudaError_t error = cudaMalloc(&data_, size_bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemory(fmt::format("the GPU does not have {} free", format_size(size_bytes)),
                        "measure a smaller size");
    }
    check_cuda(error, "cudaMalloc");
  }
  ~PlainDeviceMemory() { cudaFree(data_); }
  PlainDeviceMemory(const PlainDeviceMemory&) = delete;
  PlainDeviceMemory& operator=(const PlainDeviceMemory&) = delete;

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), size_bytes_}; }

 private:
  void* data_ = nullptr;
  const std::size_t size_bytes_;
};

// A stream, and the event that follows its copies.
class Way {
 public:
  Way() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Way() {
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  cudaStream_t stream() const { return stream_; }

  void copy(std::span<std::byte> target, std::span<const std::byte> source, cudaEvent_t start) {
    check_cuda(cudaStreamWaitEvent(stream_, start, cudaEventWaitDefault), "cudaStreamWaitEvent");
    check_cuda(
        cudaMemcpyAsync(target.data(), source.data(), source.size(), cudaMemcpyDefault, stream_),
        "cudaMemcpyAsync");
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
  }

  double seconds_since(cudaEvent_t start) const {
    check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, start, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

class PlainCopies final : public CopyLoad {
 public:
  PlainCopies(LockedMemory memory, const PlainCopyOptions& options)
      : ordinal_(options.ordinal), is_allocated_(memory == LockedMemory::kAllocated) {
    use_cuda_device(ordinal_);
    if (is_allocated_) {
      host_ = allocated_.emplace(options.size_bytes).bytes();
    } else {
      host_ = registered_.emplace(options).bytes().first(options.size_bytes);
    }
    device_memory_.emplace(options.size_bytes);
    device_ = device_memory_->bytes();
    upload_.emplace();
    download_.emplace();
    check_cuda(cudaEventCreate(&start_), "cudaEventCreate");
  }
  ~PlainCopies() override { cudaEventDestroy(start_); }
  PlainCopies(const PlainCopies&) = delete;
  PlainCopies& operator=(const PlainCopies&) = delete;

  std::string_view name() const override {
    return is_allocated_ ? "cudaMemcpyAsync alone, memory of cudaHostAlloc"
                         : "cudaMemcpyAsync alone, registered memory";
  }

  CopySeconds run(CopyWays ways) override {
    use_cuda_device(ordinal_);
    const std::size_t half = host_.size() / 2;
    check_cuda(cudaEventRecord(start_, upload_->stream()), "cudaEventRecord");
    CopySeconds seconds;
    switch (ways) {
      case CopyWays::kUpload:
        upload_->copy(device_, host_, start_);
        seconds.upload = upload_->seconds_since(start_);
        break;
      case CopyWays::kDownload:
        download_->copy(host_, device_, start_);
        seconds.download = download_->seconds_since(start_);
        break;
      case CopyWays::kBoth:
        upload_->copy(device_.first(half), host_.first(half), start_);
        download_->copy(host_.last(half), device_.last(half), start_);
        seconds.upload = upload_->seconds_since(start_);
        seconds.download = download_->seconds_since(start_);
        break;
      case CopyWays::kLocal:
        upload_->copy(device_.last(half), device_.first(half), start_);
        seconds.local = upload_->seconds_since(start_);
        break;
    }
    return seconds;
  }

 private:
  const int ordinal_;
  const bool is_allocated_;
  std::optional<AllocatedMemory> allocated_;
  std::optional<RegisteredMemory> registered_;
  std::optional<PlainDeviceMemory> device_memory_;
  std::optional<Way> upload_, download_;  // made when the GPU is current
  std::span<std::byte> host_, device_;
  cudaEvent_t start_ = nullptr;
};

}  // namespace

std::unique_ptr<CopyLoad> make_cuda_plain_copies(LockedMemory memory,
                                                 const PlainCopyOptions& options) {
  return std::make_unique<PlainCopies>(memory, options);
}

}  // namespace terrace

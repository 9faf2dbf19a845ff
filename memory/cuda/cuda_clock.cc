#include "memory/cuda/cuda_clock.h"

#include <cmath>

#include "base/clock.h"
#include "memory/cuda/cuda_error.h"

namespace terrace {
namespace {

constexpr std::int64_t kAnchorAgeMaxNs = 2'000'000'000;

}  // namespace

CudaAnchor::CudaAnchor(cudaStream_t stream) {
  check_cuda(cudaEventCreate(&event_), "cudaEventCreate", "clock");
  const SystemClock clock;
  // The second round counts, when everything is warm. The moment lies between the two readings.
  for (int round = 0; round < 2; ++round) {
    const std::int64_t before_ns = clock.now_ns();
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord", "clock");
    check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize", "clock");
    host_ns_ = before_ns + (clock.now_ns() - before_ns) / 2;
  }
}

CudaAnchor::~CudaAnchor() { cudaEventDestroy(event_); }

std::int64_t CudaAnchor::time_of(cudaEvent_t event) const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, event_, event), "cudaEventElapsedTime", "clock");
  return host_ns_ + std::llround(static_cast<double>(milliseconds) * 1e6);
}

CudaClock::CudaClock(int ordinal) : ordinal_(ordinal) {
  use_cuda_device(ordinal_);
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate",
             "clock");
  anchor_ = std::make_shared<const CudaAnchor>(stream_);
  anchored_ns_ = SystemClock().now_ns();
}

CudaClock::~CudaClock() { cudaStreamDestroy(stream_); }

std::shared_ptr<const CudaAnchor> CudaClock::anchor() const {
  const std::scoped_lock lock(mutex_);
  return anchor_;
}

void CudaClock::renew_if_old(std::int64_t now_ns) {
  const std::scoped_lock lock(mutex_);
  if (now_ns - anchored_ns_ < kAnchorAgeMaxNs) return;
  use_cuda_device(ordinal_);
  anchor_ = std::make_shared<const CudaAnchor>(stream_);
  anchored_ns_ = SystemClock().now_ns();
}

}  // namespace terrace

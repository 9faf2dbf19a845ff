#include "memory/cuda/cuda_stream.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "memory/cuda/cuda_error.h"

namespace terrace {
namespace {

// Every event of this device is a CudaEvent: devices are not mixed.
CudaEvent& own(Event& event) {
  auto* const result = dynamic_cast<CudaEvent*>(&event);
  TERRACE_CHECK(result != nullptr);
  return *result;
}

}  // namespace

CudaEvent::CudaEvent(int ordinal, std::shared_ptr<CudaClock> clock) : clock_(std::move(clock)) {
  use_cuda_device(ordinal);
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync), "cudaEventCreate");
}

CudaEvent::~CudaEvent() { cudaEventDestroy(event_); }

void CudaEvent::wait() { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

bool CudaEvent::is_reached() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // otherwise it stays, and the next launch would be blamed for it
    return false;
  }
  check_cuda(state, "cudaEventQuery");
  return true;
}

std::int64_t CudaEvent::reached_ns() const {
  const std::scoped_lock lock(mutex_);
  TERRACE_CHECK(anchor_ != nullptr);
  const std::int64_t reached = anchor_->time_of(event_);
  clock_->renew_if_old(SystemClock().now_ns());
  return reached;
}

void CudaEvent::record(cudaStream_t stream, std::string_view where) {
  const std::scoped_lock lock(mutex_);
  anchor_ = clock_->anchor();
  check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord", where);
}

CudaStream::CudaStream(int ordinal, std::string_view name, const std::shared_ptr<CudaClock>& clock)
    : ordinal_(ordinal), where_(fmt::format("stream '{}'", name)), idle_(ordinal, clock) {
  use_cuda_device(ordinal_);
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate",
             where_);
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void CudaStream::run(StreamTask& task) {
  use_cuda_device(ordinal_);
  task.run(NativeStream{stream_});
}

void CudaStream::copy(std::span<std::byte> target, std::span<const std::byte> source) {
  TERRACE_CHECK_EQ(target.size(), source.size());
  if (target.empty()) return;
  use_cuda_device(ordinal_);
  check_cuda(
      cudaMemcpyAsync(target.data(), source.data(), target.size(), cudaMemcpyDefault, stream_),
      "cudaMemcpyAsync", where_);
}

void CudaStream::record(Event& event) {
  use_cuda_device(ordinal_);
  own(event).record(stream_, where_);
}

void CudaStream::wait(Event& event) {
  use_cuda_device(ordinal_);
  check_cuda(cudaStreamWaitEvent(stream_, own(event).native(), cudaEventWaitDefault),
             "cudaStreamWaitEvent", where_);
}

void CudaStream::synchronize() {
  record(idle_);
  check_cuda(cudaEventSynchronize(idle_.native()), "cudaEventSynchronize", where_);
}

}  // namespace terrace

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>

// Finds when a point of a stream was reached, on the SystemClock.
namespace terrace {

// A moment that is known both to the GPU's events and to the host's clock.
class CudaAnchor {
 public:
  // Blocks until an empty stream of the current device has passed the moment.
  explicit CudaAnchor(cudaStream_t stream);
  ~CudaAnchor();
  CudaAnchor(const CudaAnchor&) = delete;
  CudaAnchor& operator=(const CudaAnchor&) = delete;

  // Returns the time of `event`, which was reached after this moment.
  std::int64_t time_of(cudaEvent_t event) const;

 private:
  cudaEvent_t event_ = nullptr;
  std::int64_t host_ns_ = 0;
};

// A clock for events. CUDA reports the milliseconds between two events as an fp32 number, whose
// last place is a quarter of a microsecond at two seconds and grows. So an anchor older than two
// seconds is renewed, by the thread that asks for a time and never by one that records.
// Thread-safe.
class CudaClock {
 public:
  explicit CudaClock(int ordinal);
  ~CudaClock();
  CudaClock(const CudaClock&) = delete;
  CudaClock& operator=(const CudaClock&) = delete;

  // Returns the anchor for an event that is recorded now: the event is reached later than the
  // anchor's moment.
  std::shared_ptr<const CudaAnchor> anchor() const;
  // Makes a new anchor if `now_ns` is long after the present anchor.
  void renew_if_old(std::int64_t now_ns);

 private:
  const int ordinal_;
  cudaStream_t stream_ = nullptr;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<const CudaAnchor> anchor_;
  std::int64_t anchored_ns_ = 0;
};

}  // namespace terrace

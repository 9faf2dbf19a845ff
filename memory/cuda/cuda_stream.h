#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "memory/cuda/cuda_clock.h"
#include "memory/device.h"

namespace terrace {

// A cudaEvent_t. Threads that wait for it sleep, because the cores have other work.
class CudaEvent final : public Event {
 public:
  CudaEvent(int ordinal, std::shared_ptr<CudaClock> clock);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void wait() override;
  bool is_reached() const override;
  std::int64_t reached_ns() const override;

  void record(cudaStream_t stream, std::string_view where);
  cudaEvent_t native() const { return event_; }

 private:
  const std::shared_ptr<CudaClock> clock_;
  cudaEvent_t event_ = nullptr;
  mutable std::mutex mutex_;
  std::shared_ptr<const CudaAnchor> anchor_;  // guarded by mutex_; none before the first record
};

// A cudaStream_t that does not wait for the default stream. The bound of its queue is CUDA's own.
class CudaStream final : public Stream {
 public:
  CudaStream(int ordinal, std::string_view name, const std::shared_ptr<CudaClock>& clock);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void run(StreamTask& task) override;
  void copy(std::span<std::byte> target, std::span<const std::byte> source) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;

 private:
  const int ordinal_;
  const std::string where_;  // e.g. "stream 'upload'"
  cudaStream_t stream_ = nullptr;
  CudaEvent idle_;  // for synchronize(): cudaStreamSynchronize() would spin
};

}  // namespace terrace

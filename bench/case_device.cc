#include "bench/case_device.h"

namespace terrace {
namespace {

// Asks a stream for the vendor's stream behind it, on a device that calls tasks at once.
class AskNative final : public StreamTask {
 public:
  void run(NativeStream stream) noexcept override { native = stream; }
  NativeStream native;
};

}  // namespace

CaseDevice::CaseDevice(const BenchDevice& device, std::size_t capacity_bytes)
    : compute_(device.backend->make(capacity_bytes)),
      kernels_(compute_->kernels()),
      stream_(compute_->device().create_stream("measured kernels")),
      begin_(compute_->device().create_event()),
      end_(compute_->device().create_event()) {
  AskNative ask;
  stream_->run(ask);
  native_ = ask.native;
}

KernelContext CaseDevice::context(std::span<std::byte> workspace) const {
  KernelContext context;
  context.stream = native_;
  context.workspace = workspace;
  context.products = kernels_.products;
  context.attention = kernels_.attention;
  return context;
}

void CaseDevice::upload(std::span<std::byte> target, std::span<const std::byte> source) {
  stream_->copy(target, source);
  stream_->synchronize();
}

void CaseDevice::copy(std::span<std::byte> target, std::span<const std::byte> source) {
  stream_->copy(target, source);
}

double CaseDevice::seconds(const std::function<void()>& enqueue, int calls) {
  stream_->record(*begin_);
  for (int call = 0; call < calls; ++call) enqueue();
  stream_->record(*end_);
  end_->wait();
  begin_->wait();
  return static_cast<double>(end_->reached_ns() - begin_->reached_ns()) * 1e-9;
}

}  // namespace terrace

#include "bench/timed_kernels.h"

#include <array>
#include <atomic>

#include "base/clock.h"
#include "kernels/cpu/cpu_kernels.h"

namespace terrace {
namespace {

std::array<std::atomic<std::int64_t>, kKernelParts> part_ns{};

template <KernelPart Part, auto Kernel>
struct Timed;

template <KernelPart Part, class Arguments,
          void (*KernelTable::*Kernel)(const KernelContext&, const Arguments&)>
struct Timed<Part, Kernel> {
  static void call(const KernelContext& context, const Arguments& arguments) {
    const SystemClock clock;
    const std::int64_t begin_ns = clock.now_ns();
    (cpu_kernels().*Kernel)(context, arguments);
    part_ns[static_cast<std::size_t>(Part)] += clock.now_ns() - begin_ns;
  }
};

template <KernelPart Part, auto... Kernels>
void time_kernels(KernelTable& table) {
  ((table.*Kernels = Timed<Part, Kernels>::call), ...);
}

KernelTable make_timed_kernels() {
  using Table = KernelTable;
  Table table = cpu_kernels();
  time_kernels<KernelPart::kMatmul, &Table::matmul_forward, &Table::matmul_backward_input,
               &Table::matmul_backward_weight>(table);
  time_kernels<KernelPart::kProduct, &Table::attention_forward, &Table::attention_backward,
               &Table::head_loss, &Table::head_sums, &Table::head_part_loss>(table);
  time_kernels<KernelPart::kElement, &Table::rms_norm_forward, &Table::rms_norm_backward,
               &Table::layer_norm_forward, &Table::layer_norm_backward, &Table::rope,
               &Table::glu_forward, &Table::glu_backward, &Table::gelu_forward,
               &Table::gelu_backward, &Table::add, &Table::scale, &Table::row_squares,
               &Table::norm_along>(table);
  time_kernels<KernelPart::kOther, &Table::accumulate_gradient, &Table::round_gradient,
               &Table::encode_wire, &Table::decode_wire, &Table::sum_wire, &Table::fill_zero,
               &Table::cast_parameters, &Table::embedding_forward, &Table::embedding_backward,
               &Table::add_positions, &Table::norm_partials>(table);
  return table;
}

const KernelTable& timed_kernels() {
  static const KernelTable kTable = make_timed_kernels();
  return kTable;
}

class TimedDevice final : public ComputeDevice {
 public:
  explicit TimedDevice(std::size_t capacity_bytes)
      : upstream_(make_cpu_compute_device(capacity_bytes)) {}

  Device& device() override { return upstream_->device(); }
  LaneKernels kernels() override {
    LaneKernels kernels = upstream_->kernels();
    kernels.table = &timed_kernels();
    return kernels;
  }
  std::unique_ptr<HostRegistration> lock(std::span<std::byte> host_memory) override {
    return upstream_->lock(host_memory);
  }

 private:
  const std::unique_ptr<ComputeDevice> upstream_;
};

class TimedBackend final : public ComputeBackend {
 public:
  const KernelTable& kernels() const override { return timed_kernels(); }
  const DeviceExchange* exchange() const override { return nullptr; }
  std::unique_ptr<ComputeDevice> make(std::size_t capacity_bytes) const override {
    return std::make_unique<TimedDevice>(capacity_bytes);
  }
};

}  // namespace

const ComputeBackend& timed_backend() {
  static const TimedBackend kBackend;
  return kBackend;
}

double kernel_seconds(KernelPart part) {
  return static_cast<double>(part_ns[static_cast<std::size_t>(part)]) * 1e-9;
}

}  // namespace terrace

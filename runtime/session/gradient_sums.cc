#include "runtime/session/gradient_sums.h"

#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "kernels/cpu/cpu_norm_partials.h"
#include "kernels/kernel_table.h"

namespace terrace {
namespace {

// The number of elements that a worker takes at a time.
constexpr std::int64_t kAdditionGrain = 1 << 16;

template <typename T>
void add_range(float* __restrict target, const T* __restrict source, std::int64_t elements,
               bool assigns) {
  if (assigns) {
    for (std::int64_t i = 0; i < elements; ++i) target[i] = to_float(source[i]);
  } else {
    for (std::int64_t i = 0; i < elements; ++i) target[i] += to_float(source[i]);
  }
}

template <typename T>
void add_typed(WorkerArena* workers, std::span<float> target, const T* source, bool assigns) {
  const auto elements = static_cast<std::int64_t>(target.size());
  if (workers == nullptr) return add_range(target.data(), source, elements, assigns);
  const std::int64_t parts = (elements + kAdditionGrain - 1) / kAdditionGrain;
  workers->parallel_for(parts, [&](std::int64_t part, int /*worker*/) {
    const std::int64_t begin = part * kAdditionGrain;
    add_range(target.data() + begin, source + begin, std::min(kAdditionGrain, elements - begin),
              assigns);
  });
}

std::size_t blocks_of(std::span<float> gradient) {
  return (gradient.size() + kNormBlock - 1) / kNormBlock;
}

}  // namespace

void add_gradient(WorkerArena* workers, std::span<float> target, const TensorView& source,
                  bool assigns) {
  TERRACE_CHECK_EQ(static_cast<std::int64_t>(target.size()), source.elements());
  if (source.dtype == DType::kF32) return add_typed(workers, target, source.as<float>(), assigns);
  if (source.dtype == DType::kF16) return add_typed(workers, target, source.as<Fp16>(), assigns);
  add_typed(workers, target, source.as<Bf16>(), assigns);
}

void add_gpu_gradient(GpuMemory& gpus, WorkerArena* workers, std::span<float> target,
                      const GpuGradient& source, bool assigns) {
  const std::size_t width = size_of(source.elements.dtype);
  const std::size_t most = GpuMemory::kPieceBytes / width;  // elements of a part
  const std::size_t parts = (target.size() + most - 1) / most;
  const auto elements_of = [&](std::size_t part) {
    return std::min(most, target.size() - part * most);
  };
  const auto start = [&](std::size_t part) {
    const std::size_t piece = GpuMemory::kGradientPiece + part % 2;
    gpus.piece(piece);
    gpus.start_read(piece, 0, source.place,
                    {.data = source.elements.data + part * most * width,
                     .size_bytes = elements_of(part) * width,
                     .name = source.name});
  };
  const SettledCopies settled(gpus, GpuMemory::kGradientPiece);
  start(0);
  for (std::size_t part = 0; part < parts; ++part) {
    if (part + 1 < parts) start(part + 1);
    const std::span<std::byte> piece = gpus.piece(GpuMemory::kGradientPiece + part % 2);
    const auto elements = static_cast<std::int64_t>(elements_of(part));
    add_gradient(workers, target.subspan(part * most, elements_of(part)),
                 view(piece.data(), source.elements.dtype, elements), assigns);
  }
}

void SquareSums::fill(std::span<float> gradient, std::span<double> partials) const {
  KernelContext context;
  context.workers = &workers_;
  cpu_norm_partials(context, {.gradient = view(gradient), .partials = view(partials)});
}

void SquareSums::add(std::span<float> gradient) {
  const std::size_t blocks = blocks_of(gradient);
  partials_.resize(std::max(partials_.size(), blocks));
  const std::span<double> partials = std::span(partials_).first(blocks);
  fill(gradient, partials);
  add_partials(partials);
}

void SquareSums::add_partials(std::span<const double> partials) {
  for (const double partial : partials) sum_ += partial;
}

std::vector<double> SquareSums::partials_of(std::span<float> gradient) const {
  std::vector<double> partials(blocks_of(gradient));
  fill(gradient, partials);
  return partials;
}

double SquareSums::norm() const { return std::sqrt(sum_); }

}  // namespace terrace

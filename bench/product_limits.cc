#include "bench/product_limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "kernels/cpu/onednn_packed.h"

namespace terrace {
namespace {

// Returns the product with fp32 operands, for a processor on which oneDNN multiplies no others.
MatrixProduct in_fp32(CaseMemory& memory, MatrixProduct product) {
  GemmShape& shape = product.shape;
  shape.input = shape.output = DType::kF32;
  product.a =
      memory.tensor(DType::kF32, shape.a_transposed ? shape.k : shape.m, shape.a_stride).data;
  product.b =
      memory.tensor(DType::kF32, shape.b_transposed ? shape.n : shape.k, shape.b_stride).data;
  product.c = memory.tensor(DType::kF32, shape.m, shape.c_stride).data;
  return product;
}

MatrixProduct as_taken(CaseMemory& memory, const MatrixProduct& product) {
  return gemm_takes(product.shape.input) ? product : in_fp32(memory, product);
}

KernelLimit by_onednn(DType type, const char* how, std::function<void()> run) {
  return {fmt::format("oneDNN alone{}: {}, all threads",
                      gemm_takes(type) ? "" : ", in fp32 because it has no bf16 here", how),
          std::move(run)};
}

// A worker's part of the columns of c.
struct Columns {
  std::int64_t begin = 0, count = 0;
};

// Returns the workers' parts, whole cache lines except for the last. There are fewer parts if there
// are fewer lines than workers.
std::vector<Columns> columns_of(const GemmShape& shape, int workers) {
  constexpr std::int64_t kUnit = 64;
  const std::int64_t part = (shape.n + workers * kUnit - 1) / (workers * kUnit) * kUnit;
  std::vector<Columns> parts;
  for (std::int64_t at = 0; at < shape.n; at += part) {
    parts.push_back({at, std::min(part, shape.n - at)});
  }
  return parts;
}

// Returns the part of the product that gives these columns.
MatrixProduct part_of(MatrixProduct product, const Columns& columns) {
  GemmShape& shape = product.shape;
  shape.n = columns.count;
  const std::int64_t step = shape.b_transposed ? shape.b_stride : 1;
  product.b += columns.begin * step * static_cast<std::int64_t>(size_of(shape.input));
  product.c += columns.begin * static_cast<std::int64_t>(size_of(shape.output));
  return product;
}

std::function<void()> on_tiles(CaseMemory& memory, const MatrixProduct& product, int workers) {
  const KernelContext context =
      memory.context(multiply_workspace(product, workers, ProductCode::kOneDnn));
  return [context, product] { multiply(context, product, ProductCode::kOneDnn); };
}

std::function<void()> one_call_each(CaseMemory& memory, const MatrixProduct& product, int workers) {
  std::vector<MatrixProduct> parts;
  std::size_t scratch = 0;
  for (const Columns& columns : columns_of(product.shape, workers)) {
    parts.push_back(part_of(product, columns));
    scratch = std::max(scratch, round_up(gemm_scratch_bytes(parts.back().shape), 64));
  }
  const KernelContext context = memory.context(scratch * parts.size());
  return [=] {
    context.workers->parallel_for(std::ssize(parts), [&](std::int64_t index, int) {
      const MatrixProduct& part = parts[static_cast<std::size_t>(index)];
      const auto mine = context.workspace.subspan(scratch * static_cast<std::size_t>(index));
      gemm(part.shape, {.a = part.a, .b = part.b, .c = part.c, .scratch = mine.first(scratch)});
    });
  };
}

std::function<void()> with_packed_weight(CaseMemory& memory, const MatrixProduct& product,
                                         int workers) {
  struct Part {
    MatrixProduct product;
    std::shared_ptr<PackedGemm> gemm;
  };
  std::vector<Part> parts;
  for (const Columns& columns : columns_of(product.shape, workers)) {
    const MatrixProduct part = part_of(product, columns);
    parts.push_back({part, std::make_shared<PackedGemm>(part.shape, part.b)});
  }
  const KernelContext context = memory.context(0);
  return [=] {
    context.workers->parallel_for(std::ssize(parts), [&](std::int64_t index, int) {
      const Part& part = parts[static_cast<std::size_t>(index)];
      part.gemm->run(part.product.a, part.product.c);
    });
  };
}

std::vector<KernelLimit> limits_of(CaseMemory& memory, const MatrixProduct& taken, DType type,
                                   int workers) {
  return {by_onednn(type, "single-threaded calls on fixed tiles", on_tiles(memory, taken, workers)),
          by_onednn(type, "one call for each thread", one_call_each(memory, taken, workers))};
}

}  // namespace

std::vector<KernelLimit> onednn_limits(const std::shared_ptr<CaseMemory>& memory,
                                       const MatrixProduct& product, int workers) {
  return limits_of(*memory, as_taken(*memory, product), product.shape.input, workers);
}

std::vector<KernelLimit> onednn_weight_limits(const std::shared_ptr<CaseMemory>& memory,
                                              const MatrixProduct& product, int workers) {
  const MatrixProduct taken = as_taken(*memory, product);
  std::vector<KernelLimit> limits = limits_of(*memory, taken, product.shape.input, workers);
  limits.push_back(by_onednn(product.shape.input,
                             "one call for each thread, weights packed in advance",
                             with_packed_weight(*memory, taken, workers)));
  return limits;
}

}  // namespace terrace

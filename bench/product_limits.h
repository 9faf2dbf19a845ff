#pragma once

#include <memory>
#include <vector>

#include "bench/kernel_cases.h"
#include "kernels/cpu/matrix_product.h"

namespace terrace {

// Returns ways in which oneDNN alone computes a product, by single-threaded calls that the workers
// share: on fixed tiles, as kernels do where oneDNN computes their products, and with one call for
// each worker. The operands are in fp32 where oneDNN takes no others. The ways borrow `memory`.
std::vector<KernelLimit> onednn_limits(const std::shared_ptr<CaseMemory>& memory,
                                       const MatrixProduct& product, int workers);
// Returns these ways and, as b is a weight, one with a call for each worker and b packed before.
std::vector<KernelLimit> onednn_weight_limits(const std::shared_ptr<CaseMemory>& memory,
                                              const MatrixProduct& product, int workers);

}  // namespace terrace

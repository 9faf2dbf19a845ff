#pragma once

#include <memory>
#include <vector>

#include "bench/kernel_cases.h"
#include "kernels/cpu/matrix_product.h"

namespace terrace {

// Ways in which oneDNN alone computes a product, single-threaded calls that the workers share: on
// fixed tiles, as a product is computed where oneDNN computes it, and with one call for each
// worker; of operands in fp32, where oneDNN takes no others. They borrow `memory`.
std::vector<KernelLimit> onednn_limits(const std::shared_ptr<CaseMemory>& memory,
                                       const MatrixProduct& product, int workers);
// And, as b is a weight, with one call for each worker and b packed before.
std::vector<KernelLimit> onednn_weight_limits(const std::shared_ptr<CaseMemory>& memory,
                                              const MatrixProduct& product, int workers);

}  // namespace terrace

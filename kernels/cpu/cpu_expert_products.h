#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

// The matrix products of experts. Each expert with rows is one product, as large as its rows, in
// our own code (matrix_product.h): oneDNN would compile code for every number of rows that occurs.
// Rows that lie apart are first copied side by side. The sum of an element depends on its row, its
// column and the depth alone, so the bits do not depend on how many rows an expert has.
namespace terrace {

void cpu_expert_forward(const KernelContext& context, const ExpertForward& op);
void cpu_expert_backward_input(const KernelContext& context, const ExpertBackwardInput& op);
void cpu_expert_backward_weight(const KernelContext& context, const ExpertBackwardWeight& op);

// Return enough for any division of the rows among experts.
std::size_t cpu_expert_forward_workspace(const ExpertForward& op, int workers);
std::size_t cpu_expert_backward_input_workspace(const ExpertBackwardInput& op, int workers);
std::size_t cpu_expert_backward_weight_workspace(const ExpertBackwardWeight& op, int workers);

}  // namespace terrace

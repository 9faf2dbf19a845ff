#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"

// RMSNorm and LayerNorm. Row sums are fp32 in 32 fixed accumulators. Weight gradients are summed
// over blocks of kNormRowBlock rows (or of groups, where a row has several), and the blocks are
// then added in order. The shape fixes the blocks, so bits depend neither on the number of workers
// nor on the vector width.
namespace terrace {

inline constexpr std::int64_t kNormRowBlock = 64;

void cpu_rms_norm_forward(const KernelContext& context, const RmsNormForward& op);
void cpu_rms_norm_backward(const KernelContext& context, const RmsNormBackward& op);
void cpu_row_squares(const KernelContext& context, const RowSquares& op);
void cpu_norm_along(const KernelContext& context, const NormAlong& op);
void cpu_layer_norm_forward(const KernelContext& context, const LayerNormForward& op);
void cpu_layer_norm_backward(const KernelContext& context, const LayerNormBackward& op);

// Returns the bytes for one fp32 row for dweight and one for dbias per row block.
std::size_t cpu_norm_backward_workspace(std::int64_t rows, std::int64_t width, int workers);

}  // namespace terrace

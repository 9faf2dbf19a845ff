#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"

// Embedding lookup, and its gradient by a sorted list of (token, row) instead of scattered
// additions: one worker computes each sum in the order of kernels/kernel_table.h, so the bits are
// the same as the reference's.
namespace terrace {

void cpu_embedding_forward(const KernelContext& context, const EmbeddingForward& op);
void cpu_add_positions(const KernelContext& context, const AddPositions& op);
void cpu_embedding_backward(const KernelContext& context, const EmbeddingBackward& op);

// Returns the bytes for one 64-bit key per row of all micro-batches.
std::size_t cpu_embedding_backward_workspace(std::int64_t rows, std::int64_t micro_batches,
                                             std::int64_t vocabulary, std::int64_t width,
                                             int workers);

}  // namespace terrace

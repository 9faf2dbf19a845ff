#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "kernels/quantized_matrix.h"
#include "memory/host/worker_arena.h"

namespace terrace {

// Sets `out` to elements [begin, begin + out.size()) of a whole matrix. Called by several threads.
using MatrixNumbers = FunctionRef<void(std::int64_t begin, std::span<float> out)>;

// Returns the bytes of a matrix, or of a rank's part of it, in the format of
// kernels/quantized_matrix.h. Every number is read once. Each number gets the nearest code. The
// bits depend on the matrix alone. A number that is not finite makes its block NaN. In nf4 it makes
// the whole matrix NaN, because the mean is taken over all scales.
std::vector<std::byte> quantize_matrix(const QuantizedShape& shape, MatrixNumbers numbers,
                                       WorkerArena& workers);

}  // namespace terrace

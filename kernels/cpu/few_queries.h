#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"

// Attention of a few queries to many keys, as when the next token is generated: keys and values are
// read where they lie, once for all the query heads that share them, and nothing is packed.
namespace terrace {

inline constexpr std::int64_t kFewQueries = 8;

// Returns whether there are fewer queries than keys, and at most kFewQueries in a sequence.
bool is_of_few_queries(const AttentionShape& shape);

void few_queries_attention(const KernelContext& context, const AttentionForward& op);
std::size_t few_queries_workspace(const AttentionForward& op, int workers);

}  // namespace terrace

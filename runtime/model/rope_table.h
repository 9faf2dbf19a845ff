#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/rope_options.h"

// The angles of rotary position embeddings, as transformers computes them: in fp32, in the same
// order, so that tables agree to a rounding of pow, cos and sin. docs/families.md has the formulas.
namespace terrace {

// Returns the rotary_width / 2 angular frequencies for sequences of `length` positions.
std::vector<float> rope_frequencies(const RopeOptions& options, std::int64_t length,
                                    std::int64_t rotary_width);

// Returns whether the frequencies depend on the length of the sequences.
bool depends_on_length(const RopeOptions& options);

// Returns the length up to which all sequences have the same frequencies. Each longer length may
// have its own. Returns the largest number there is where frequencies do not depend on the length.
std::int64_t longest_short_document(const RopeOptions& options);

// Fills a table [positions, rotary_width] for sequences of `length` positions: in each row the
// cosines of rotary_width / 2 angles, then their sines, all times the attention factor.
void fill_rope_table(const RopeOptions& options, std::int64_t length, std::int64_t rotary_width,
                     std::span<float> table);

}  // namespace terrace

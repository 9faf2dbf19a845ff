#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/rope_options.h"

// The angles of rotary position embeddings.
namespace terrace {

// The head_width / 2 angular frequencies, after scaling.
std::vector<double> rope_frequencies(const RopeOptions& options, std::int64_t head_width);

// table [positions, head_width]: in each row the cosines of head_width / 2 angles, then their
// sines.
void fill_rope_table(const RopeOptions& options, std::int64_t positions, std::int64_t head_width,
                     std::span<float> table);

}  // namespace terrace

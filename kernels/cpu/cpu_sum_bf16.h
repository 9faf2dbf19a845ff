#pragma once

#include <cstddef>
#include <span>

namespace terrace {

// Adds up what ranks contribute to a collective: writes the sum of all sources, element by element
// in their order, in fp32, rounded once to nearest even, to every target. All have `elements` bf16,
// of any alignment; a target may be a source. There is at least one source.
void sum_bf16_in_order(std::span<std::byte* const> targets,
                       std::span<const std::byte* const> sources, std::size_t elements);

}  // namespace terrace

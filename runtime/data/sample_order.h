#pragma once

#include <cstdint>

// The order of training samples: which window of the data each one is. There is no state: resuming
// needs the sample index only, and no mesh or batch size changes the order.
namespace terrace {

// Returns the number of windows of an epoch. A window has sequence_length inputs and one token
// more. The inputs of windows do not overlap.
std::int64_t windows_per_epoch(std::int64_t tokens, std::int64_t sequence_length);

// Returns which of `samples` samples the one with this number is, where an epoch has each of them
// once.
std::int64_t sample_of(std::uint64_t seed, std::int64_t global_sample, std::int64_t samples);

// Returns the first token of the window of sample `global_sample` (0, 1, ...). Each epoch visits
// every window once, in an order of its own, with the grid of windows shifted by the epoch's own
// part of the tokens left over. Needs at least one window.
std::int64_t window_start(std::uint64_t seed, std::int64_t global_sample, std::int64_t tokens,
                          std::int64_t sequence_length);

}  // namespace terrace

#pragma once

#include <cstdint>

// Which window of the data each training sample is. There is no state: resuming needs the sample
// index only, and no mesh or batch size changes the order.
namespace terrace {

// Windows of an epoch: sequence_length inputs and one token more, the windows' inputs do not
// overlap.
std::int64_t windows_per_epoch(std::int64_t tokens, std::int64_t sequence_length);

// Which of `samples` the sample of an epoch is, where an epoch has them all once.
std::int64_t sample_of(std::uint64_t seed, std::int64_t global_sample, std::int64_t samples);

// The first token of the window of sample `global_sample` (0, 1, ...). Each epoch visits every
// window once, in an order of its own, with the grid of windows shifted by the epoch's own part of
// the tokens left over. Needs at least one window.
std::int64_t window_start(std::uint64_t seed, std::int64_t global_sample, std::int64_t tokens,
                          std::int64_t sequence_length);

}  // namespace terrace

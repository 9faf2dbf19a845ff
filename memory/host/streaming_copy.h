#pragma once

#include <cstddef>
#include <span>

namespace terrace {

// Copies source to target, which have equal sizes and do not overlap, and bypasses the caches.
// Meant for bytes that this core will not touch soon. Uses one thread. For a few megabytes that are
// not in a cache it is much faster than memcpy(), because it does not read the target's cache lines
// first. Small copies use memcpy().
void streaming_copy(std::span<std::byte> target, std::span<const std::byte> source);

}  // namespace terrace

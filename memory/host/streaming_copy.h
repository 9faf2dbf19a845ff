#pragma once

#include <cstddef>
#include <span>

namespace terrace {

// Copies source to target, equal sizes that do not overlap, past the caches: for bytes that nobody
// on this core touches soon. On one thread, and much faster than memcpy() for some megabytes that
// are not in cache, because lines of the target are not read first. Small copies are memcpy()'s.
void streaming_copy(std::span<std::byte> target, std::span<const std::byte> source);

}  // namespace terrace

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace terrace {

struct SpaceNeed {
  std::string directory;
  std::uint64_t need_bytes = 0;
  std::optional<std::size_t> budget_bytes;
};

// Throws OutOfMemory naming the directory, the bytes that are there and the bytes needed, where a
// budget, a limit on the size of files, or free space is too small. Directories on one file system
// are counted together.
void check_space(std::span<const SpaceNeed> needs);

// Returns the free bytes of the file systems of these directories together, each counted once.
// Throws IoError for a directory that does not exist.
std::uint64_t free_space(std::span<const std::string> directories);

}  // namespace terrace

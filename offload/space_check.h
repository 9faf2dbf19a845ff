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

// Throws OutOfMemory naming the directory, what is there and what is needed, where a budget, a
// limit on the size of files, or free space is too small. Directories on one file system are
// counted together.
void check_space(std::span<const SpaceNeed> needs);

// Returns what is free on the file systems of these directories together, each counted once. Throws
// IoError for a directory that is not there.
std::uint64_t free_space(std::span<const std::string> directories);

}  // namespace terrace

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench/bench.h"

namespace terrace {

// Returns the directories on the drives that a benchmark uses: temporary_directory() if none is
// named.
std::vector<std::string> bench_directories(const BenchOptions& options);

// Checks the directories before anything is measured that would be lost: each is there, can be
// written to, and has room for its part of `total_bytes`. Throws ConfigError, OutOfMemory.
void check_drives(const BenchOptions& options, std::uint64_t total_bytes, Log& log);

// The file system and drive that a directory lies on, without any part of its path.
struct DrivePlace {
  std::string file_system;  // "ext4"
  std::string device;       // "nvme0n1"; empty where the system names none
  std::string model;        // empty where the system names none
  std::string kind;         // "solid state"
  bool is_memory = false;   // memory, and no drive
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

// Returns the place of a directory. Throws IoError if it cannot be looked at.
DrivePlace drive_place(const std::string& directory);

}  // namespace terrace

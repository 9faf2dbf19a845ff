#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench/bench.h"

namespace terrace {

// Returns those on the drives that a benchmark uses: where none is named, temporary_directory().
std::vector<std::string> bench_directories(const BenchOptions& options);

// Looks at them, before anything is measured that would be lost: each is there, can be written to,
// and has room for its part of so many bytes. Throws ConfigError, OutOfMemory.
void check_drives(const BenchOptions& options, std::uint64_t total_bytes, Log& log);

// What a directory lies on; names nothing of where it is.
struct DrivePlace {
  std::string file_system;  // "ext4"
  std::string device;       // "nvme0n1"; empty where the system names none
  std::string model;        // empty likewise
  std::string kind;         // "solid state"
  bool is_memory = false;   // and no drive
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

// Throws IoError where it cannot be looked at.
DrivePlace drive_place(const std::string& directory);

}  // namespace terrace

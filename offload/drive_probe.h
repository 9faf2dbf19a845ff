#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "offload/drive_shape.h"
#include "offload/io_engine.h"

namespace terrace {

// What a probe works on.
struct ProbeTarget {
  // An engine of that depth; its only file is one of `file_bytes`, all of it reserved.
  std::function<std::unique_ptr<IoEngine>(int depth)> make_engine;
  std::uint64_t file_bytes = 0;  // kProbeBytesMin or more
};

// A file that is smaller says nothing.
inline constexpr std::uint64_t kProbeBytesMin = 32 * kMiB;

// Measures a drive: writes the file once, or as much of it as can be written in a quarter of a
// second, but kProbeBytesMin; then reads that in several shapes, in turns, for half a second.
// Nothing where a transfer fails. Takes some 32 MiB of memory while it runs. Throws what the engine
// throws when it is made.
std::optional<DriveFacts> probe_drive(const ProbeTarget& target);

}  // namespace terrace

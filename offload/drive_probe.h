#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "offload/drive_shape.h"
#include "offload/io_engine.h"

namespace terrace {

// The file and engine that a probe works on.
struct ProbeTarget {
  // Makes an engine of that depth. Its only file has `file_bytes`, all of them reserved.
  std::function<std::unique_ptr<IoEngine>(int depth)> make_engine;
  std::uint64_t file_bytes = 0;  // kProbeBytesMin or more
};

// Measuring a smaller file tells nothing.
inline constexpr std::uint64_t kProbeBytesMin = 32 * kMiB;

// Measures a drive. Writes the file from its start until all of it is written or a quarter of a
// second has passed, but at least kProbeBytesMin. Then reads the part that was written, in several
// shapes, in turns, for half a second. Returns nothing where a transfer fails. Takes some 32 MiB of
// memory while it runs. Throws whatever making the engine throws.
std::optional<DriveFacts> probe_drive(const ProbeTarget& target);

}  // namespace terrace

#pragma once

#include <cstdint>

#include "runtime/data/json_document.h"
#include "runtime/data/json_line.h"

namespace terrace {

// Reads "input_ids" and the keys beside it that say what the ids are. docs/data.md, "JSON lines",
// describes them. Throws ConfigError, which names the key, where two keys contradict each other or
// a key says something that is not built.
JsonDocument read_json_ids(const JsonLine& line, std::int64_t vocabulary);

}  // namespace terrace

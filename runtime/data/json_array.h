#pragma once

#include <memory>
#include <string>

#include "runtime/data/json_texts.h"

namespace terrace {

// Opens a file, which may be compressed, that has one array of JSON, and reads the texts of its
// items. Only one item is in memory at a time. Throws IoError, CorruptData.
std::unique_ptr<JsonTexts> open_json_array(const std::string& path);

}  // namespace terrace

#pragma once

#include <optional>
#include <string>

namespace terrace {

// Describes a file of JSON lines, of the ends of documents (FILE.idx), of Megatron's index (P.idx)
// or a mask (FILE.mask), told by its name, as a JSON object; none for others. Throws IoError,
// CorruptData.
std::optional<std::string> describe_data_companion(const std::string& path);

// Describes a file of JSON lines, which may be compressed: the keys of the first, as a
// JSON object. Throws IoError,
// and CorruptData where that is no object.
std::string describe_json_lines(const std::string& path);

}  // namespace terrace

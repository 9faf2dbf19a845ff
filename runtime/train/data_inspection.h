#pragma once

#include <optional>
#include <string>

namespace terrace {

// Describes as a JSON object a file of JSON lines, of document ends (FILE.idx), of Megatron's index
// (P.idx) or of a mask (FILE.mask). The kind is told by the file's name; returns none for other
// files. Throws IoError, CorruptData.
std::optional<std::string> describe_data_companion(const std::string& path);

// Describes a file of JSON lines, which may be compressed, as a JSON object: the keys of the first
// line. Throws IoError, and CorruptData where the first line is no object.
std::string describe_json_lines(const std::string& path);

}  // namespace terrace

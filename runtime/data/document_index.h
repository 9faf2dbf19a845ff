#pragma once

#include <cstdint>
#include <string>

#include "base/function_ref.h"

namespace terrace {

// The ends of the documents in a file of token ids.
struct DocumentIndex {
  enum class Kind : std::uint8_t {
    kNone,      // it is not known
    kWhole,     // the file is one document
    kEnds,      // a file of u64, little-endian: tokens up to the end of each document
    kMegatron,  // Megatron's index of the file
  };
  Kind kind = Kind::kNone;
  std::string path;  // of kEnds and kMegatron
};

// Looks at `path`, which has the ends of documents (kEnds) of a file of `tokens` ids. Throws
// IoError, and CorruptData where the last end is not `tokens`.
DocumentIndex open_ends(const std::string& path, std::int64_t tokens);

// Calls `visit` with the end of each document in turn. Throws IoError, and CorruptData where an end
// lies before the previous one, or after `tokens`.
void visit_ends(const DocumentIndex& index, std::int64_t tokens,
                FunctionRef<void(std::int64_t end)> visit);

}  // namespace terrace

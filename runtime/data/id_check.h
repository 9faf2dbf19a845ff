#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "runtime/data/token_files.h"

namespace terrace {

// The vocabulary to give where no model is known: every id of 4 bytes with a sign is below it.
constexpr std::int64_t kUnknownVocabulary = std::numeric_limits<std::int32_t>::max();

// Looks at ids from the start, the middle and the end of token files. Throws ConfigError for a file
// in which every other id is 0, as happens where wider integers were written than are read; the
// message names the way to convert it. Also throws IoError. Returns a sentence if the ids use so
// little of the vocabulary that they may be of another tokenizer. Otherwise, and with
// kUnknownVocabulary, returns nothing.
std::string check_ids(const std::vector<TokenFile>& files, std::int64_t vocabulary);

}  // namespace terrace

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/jinja/value.h"

namespace terrace::jinja {

// The treatment of whole numbers that 64 bits do not hold. Python keeps them; transformers writes
// one into every tokenizer_config.json.
enum class LargeNumbers : std::uint8_t { kRefused, kRounded };

// Parses a JSON text into a value: objects become mappings whose keys stay in the order of the text
// (of a key that is there twice, the last value counts, as in Python's json.loads), arrays become
// lists, null becomes None. Whole numbers stay whole. Throws CorruptData: "PLACE: not JSON: REASON"
// for a text that is not JSON or is nested too deep, with the column, for a value that is too large
// to work on and, if they are refused, for a whole number that 64 bits do not hold.
Value parse_json_value(std::string_view text, const std::string& place,
                       LargeNumbers large = LargeNumbers::kRefused);

}  // namespace terrace::jinja

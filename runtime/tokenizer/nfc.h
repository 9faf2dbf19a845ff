#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/unicode_classes.h"

namespace terrace {

// Appends the text, which is valid UTF-8, in Unicode's normalisation form C, as `tokenizers` makes
// it: marks that are newer than its tables have class 0 there. Text that NFC does not change is
// only scanned.
void append_nfc(const UnicodeClasses& classes, std::string_view text, std::string& out);

// Does the same, and appends for each byte of the result where the part of `text` that it comes
// from ends: a part that is normalised by itself.
void append_nfc(const UnicodeClasses& classes, std::string_view text, std::string& out,
                std::vector<std::size_t>& ends);

}  // namespace terrace

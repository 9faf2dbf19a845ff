#pragma once

#include <string>
#include <string_view>

#include "runtime/tokenizer/unicode_classes.h"

namespace terrace {

// Appends the text, which is valid UTF-8, in Unicode's normalisation form C, as `tokenizers` makes
// it: marks that are newer than its tables have class 0 there. Text that NFC does not change is
// only scanned.
void append_nfc(const UnicodeClasses& classes, std::string_view text, std::string& out);

}  // namespace terrace

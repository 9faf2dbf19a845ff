#include "runtime/tokenizer/unicode_classes.h"

#include <cstddef>
#include <span>

#include "base/check.h"
#include "runtime/tokenizer/unicode_tables.h"

namespace terrace {
namespace {

constexpr std::size_t kCodePoints = 0x110000;

void add_class(std::vector<std::uint8_t>& classes, std::span<const std::uint32_t> ranges,
               CodePointClass kind) {
  std::size_t at = 0;
  for (std::size_t i = 0; i + 1 < ranges.size(); i += 2) {
    at += ranges[i];
    const std::size_t end = at + ranges[i + 1];
    TERRACE_CHECK_LE(end, classes.size());
    for (; at < end; ++at) classes[at] |= static_cast<std::uint8_t>(kind);
  }
}

}  // namespace

UnicodeClasses::UnicodeClasses() : classes_(kCodePoints) {
  const UnicodeTables tables = unicode_tables();
  add_class(classes_, tables.letters, CodePointClass::kLetter);
  add_class(classes_, tables.numbers, CodePointClass::kNumber);
  add_class(classes_, tables.spaces, CodePointClass::kSpace);
  add_class(classes_, tables.numerics, CodePointClass::kNumeric);
  add_class(classes_, tables.words, CodePointClass::kWord);
  add_class(classes_, tables.nfc_specials, CodePointClass::kNfcSpecial);
  add_class(classes_, tables.marks, CodePointClass::kMark);
}

}  // namespace terrace

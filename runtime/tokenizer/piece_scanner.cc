#include "runtime/tokenizer/piece_scanner.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::uint8_t kLetter = static_cast<std::uint8_t>(CodePointClass::kLetter);
constexpr std::uint8_t kNumber = static_cast<std::uint8_t>(CodePointClass::kNumber);
constexpr std::uint8_t kSpace = static_cast<std::uint8_t>(CodePointClass::kSpace);
constexpr std::uint8_t kOfPatterns = kLetter | kNumber | kSpace;
constexpr std::uint8_t kOther = 0;  // none of the three

// U+017F, a long s, which is an s where case does not count.
constexpr std::string_view kLongS = "\xC5\xBF";

constexpr bool is_line_end(char c) { return c == '\r' || c == '\n'; }

// A text, and the classes of its code points.
class ScannedText {
 public:
  ScannedText(std::string_view text, const UnicodeClasses& classes)
      : text_(text), classes_(classes) {}

  struct Sign {
    std::uint8_t kind;
    std::size_t end;
  };
  // Returns the code point at a place inside the text.
  Sign sign_at(std::size_t at) const {
    const auto byte = static_cast<unsigned char>(text_[at]);
    if (byte < 0x80) return {static_cast<std::uint8_t>(classes_.of(byte) & kOfPatterns), at + 1};
    const CodePoint point = code_point_at(text_, at);
    return {static_cast<std::uint8_t>(classes_.of(point.value) & kOfPatterns),
            at + point.size_bytes};
  }
  bool has(std::size_t at, std::uint8_t kind) const {
    return at < text_.size() && sign_at(at).kind == kind;
  }

  // Returns where the run of code points of the kind ends.
  std::size_t end_of_run(std::size_t at, std::uint8_t kind) const {
    while (at < text_.size()) {
      const Sign sign = sign_at(at);
      if (sign.kind != kind) break;
      at = sign.end;
    }
    return at;
  }
  std::size_t end_of_run(std::size_t at, std::uint8_t kind, int at_most) const {
    for (; at_most > 0 && at < text_.size(); --at_most) {
      const Sign sign = sign_at(at);
      if (sign.kind != kind) break;
      at = sign.end;
    }
    return at;
  }

  // Returns where \s+(?!\S)|\s+ ends in a run of white space. It takes all of the run at the end of
  // the text, else all but the run's last code point, and always at least one code point.
  std::size_t end_of_spaces(std::size_t at, std::size_t run_end) const {
    if (run_end == text_.size()) return run_end;
    const std::size_t last = run_end - code_point_before(text_, run_end).size_bytes;
    return last > at ? last : run_end;
  }

 private:
  std::string_view text_;
  const UnicodeClasses& classes_;
};

// Returns where 's, 't, 're, 've, 'm, 'll or 'd ends, whose apostrophe stands at `at`; `at` where
// there is none.
std::size_t end_of_contraction(std::string_view text, std::size_t at, bool any_case) {
  const auto letter = [&](std::size_t i) {
    if (at + i >= text.size()) return '\0';
    const char c = text[at + i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(1);
  const char second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
  if (first == 'l' && second == 'l') return at + 3;
  if (any_case && text.substr(at + 1).starts_with(kLongS)) return at + 1 + kLongS.size();
  return at;
}

class Gpt2Scanner final : public PieceScanner {
 public:
  explicit Gpt2Scanner(const UnicodeClasses& classes) : classes_(classes) {}

  std::size_t end_of_piece(std::string_view text, std::size_t at) const override {
    if (text[at] == '\'') {
      const std::size_t end = end_of_contraction(text, at, false);
      if (end > at) return end;
    }
    const ScannedText scanned(text, classes_);
    const ScannedText::Sign first = scanned.sign_at(at);
    if (first.kind != kSpace) return scanned.end_of_run(first.end, first.kind);
    if (text[at] == ' ' && first.end < text.size()) {
      const ScannedText::Sign second = scanned.sign_at(first.end);
      if (second.kind != kSpace) return scanned.end_of_run(second.end, second.kind);
    }
    return scanned.end_of_spaces(at, scanned.end_of_run(first.end, kSpace));
  }
  // The last white space before a letter is a piece of its own.
  bool keeps_crlf() const override { return false; }

 private:
  const UnicodeClasses& classes_;
};

class Llama3Scanner final : public PieceScanner {
 public:
  Llama3Scanner(const UnicodeClasses& classes, int digits) : classes_(classes), digits_(digits) {}

  std::size_t end_of_piece(std::string_view text, std::size_t at) const override {
    if (text[at] == '\'') {
      const std::size_t end = end_of_contraction(text, at, true);
      if (end > at) return end;
    }
    const ScannedText scanned(text, classes_);
    const ScannedText::Sign first = scanned.sign_at(at);
    if (first.kind == kLetter) return scanned.end_of_run(first.end, kLetter);
    if (first.kind == kNumber) return scanned.end_of_run(first.end, kNumber, digits_ - 1);
    if (!is_line_end(text[at]) && scanned.has(first.end, kLetter)) {
      return scanned.end_of_run(first.end, kLetter);
    }
    if (first.kind == kOther || (text[at] == ' ' && scanned.has(first.end, kOther))) {
      return end_of_lines(text, scanned.end_of_run(first.end, kOther));
    }
    const std::size_t run_end = scanned.end_of_run(first.end, kSpace);
    const std::size_t after_lines = last_line_end(text, at, run_end);
    return after_lines > at ? after_lines : scanned.end_of_spaces(at, run_end);
  }
  bool keeps_crlf() const override { return true; }

 private:
  static std::size_t end_of_lines(std::string_view text, std::size_t at) {
    while (at < text.size() && is_line_end(text[at])) ++at;
    return at;
  }
  // Returns the place after the last end of a line in [at, end); `at` where there is none.
  static std::size_t last_line_end(std::string_view text, std::size_t at, std::size_t end) {
    while (end > at && !is_line_end(text[end - 1])) --end;
    return end;
  }

  const UnicodeClasses& classes_;
  int digits_;  // of a piece, at most
};

}  // namespace

std::string_view gpt2_pattern() { return kGpt2; }
std::string_view llama3_pattern() { return kLlama3; }
std::string_view qwen2_pattern() { return kQwen2; }

std::unique_ptr<PieceScanner> make_piece_scanner(std::string_view pattern,
                                                 const UnicodeClasses& classes) {
  if (pattern == kGpt2) return std::make_unique<Gpt2Scanner>(classes);
  if (pattern == kLlama3) return std::make_unique<Llama3Scanner>(classes, 3);
  if (pattern == kQwen2) return std::make_unique<Llama3Scanner>(classes, 1);
  return nullptr;
}

}  // namespace terrace

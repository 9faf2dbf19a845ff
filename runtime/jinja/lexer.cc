#include "runtime/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/python_text.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace::jinja {
namespace {

using Kind = Token::Kind;

// Bounds how deep expressions are nested, since each level has a part of its own.
constexpr std::size_t kTagPartsMax = 10'000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_in_name(char c) { return begins_name(c) || is_digit(c); }

// Returns the text with "\n" at the end of each line, and without the newline at its own end.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

// Reads the escapes of a string literal, as Python reads them.
class LiteralReader {
 public:
  LiteralReader(std::string_view literal, int line) : literal_(literal), line_(line) {}

  std::string read() {
    while (at_ < literal_.size()) {
      if (literal_[at_] != '\\' || at_ + 1 == literal_.size()) {
        out_ += literal_[at_++];
      } else {
        ++at_;
        read_escape(literal_[at_++]);
      }
    }
    return std::move(out_);
  }

 private:
  void read_escape(char letter) {
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeant = "\a\b\f\n\r\t\v\\'\"";
    if (const std::size_t found = kLetters.find(letter); found != std::string_view::npos) {
      out_ += kMeant[found];
    } else if (letter == 'x') {
      read_number(2, 16);
    } else if (letter == 'u') {
      read_number(4, 16);
    } else if (letter == 'U') {
      read_number(8, 16);
    } else if (letter >= '0' && letter <= '7') {
      --at_;
      std::size_t digits = 0;
      while (digits < 3 && at_ + digits < literal_.size() && literal_[at_ + digits] >= '0' &&
             literal_[at_ + digits] <= '7') {
        ++digits;
      }
      read_number(digits, 8);
    } else if (letter == 'N') {
      throw SyntaxError("the escape \\N{...} is not supported; write the character itself", line_);
    } else if (static_cast<unsigned char>(letter) >= 0x80) {
      throw SyntaxError("a backslash before a letter beyond ASCII is not supported", line_);
    } else if (letter != '\n') {
      out_ += '\\';
      out_ += letter;
    }
  }

  void read_number(std::size_t digits, int base) {
    const std::string_view number = literal_.substr(at_, digits);
    std::uint32_t value = 0;
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), value, base);
    const bool is_surrogate = value >= 0xD800 && value < 0xE000;
    if (is_surrogate && error == std::errc() && end == number.data() + digits) {
      throw SyntaxError("an escape of half a surrogate pair is not supported", line_);
    }
    if (number.size() < digits || error != std::errc() || end != number.data() + digits ||
        value > 0x10FFFF) {
      throw SyntaxError(
          fmt::format("\\{} is not an escape of a character", literal_.substr(at_ - 1, digits + 1)),
          line_);
    }
    append_utf8(value, out_);
    at_ += digits;
  }

  std::string_view literal_;
  int line_;
  std::size_t at_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_newlines(source)) {}

  std::vector<Token> cut() {
    while (at_ < source_.size()) {
      const Tag tag = next_tag();
      if (tag.begin > at_) add(Kind::kData, data_before(tag));
      if (tag.begin == source_.size()) break;
      enter(tag);
    }
    std::erase_if(tokens_, [](const Token& token) {
      return token.kind == Kind::kData && token.text.empty();
    });
    add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  // Where the next tag stands.
  struct Tag {
    std::size_t begin = 0;  // the size of the source if there is none
    char kind = 0;          // the second character: % { or #
    char sign = 0;          // - or + after it, or 0
  };

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  [[noreturn]] void fail(const std::string& what) const { throw SyntaxError(what, line_); }

  // Moves on, and counts the lines that are passed.
  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    begins_line_ = to == 0 || source_[to - 1] == '\n';
    at_ = to;
  }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  Tag next_tag() const {
    std::size_t begin = at_;
    for (;; ++begin) {
      begin = source_.find('{', begin);
      if (begin == std::string::npos || begin + 1 >= source_.size()) return {source_.size(), 0, 0};
      const char kind = source_[begin + 1];
      if (kind != '%' && kind != '{' && kind != '#') continue;
      const char next = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
      return {begin, kind, next == '-' || next == '+' ? next : '\0'};
    }
  }

  // Returns the text before a tag, without the white space that the tag drops.
  std::string data_before(const Tag& tag) const {
    const std::string_view data = std::string_view(source_).substr(at_, tag.begin - at_);
    if (tag.kind == 0) return std::string(data);
    if (tag.sign == '-') return std::string(strip_end(data));
    if (tag.sign == '+' || tag.kind == '{') return std::string(data);
    const std::size_t newline = data.rfind('\n');
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    const bool is_whole_line = newline != std::string_view::npos || begins_line_;
    if (is_whole_line && strip_end(data.substr(line)).empty()) {
      return std::string(data.substr(0, line));
    }
    return std::string(data);
  }

  void enter(const Tag& tag) {
    advance(tag.begin);
    const std::size_t inside = tag.begin + (tag.sign == 0 ? 2 : 3);
    if (tag.kind == '#') return skip_comment(inside);
    if (tag.kind == '%' && enter_raw(inside)) return;
    add(tag.kind == '%' ? Kind::kBlockBegin : Kind::kPrintBegin, "");
    advance(inside);
    cut_tag(tag.kind);
  }

  void skip_comment(std::size_t from) {
    if (from >= source_.size()) return advance(source_.size());  // as Jinja2 has it
    const std::size_t end = source_.find("#}", from);
    if (end == std::string::npos) fail("the end of a comment, #}, is missing");
    leave(end + 2, end > from ? source_[end - 1] : '\0', true);
  }

  // Goes on behind a tag that ends at `end`, and drops the white space that it drops.
  void leave(std::size_t end, char sign, bool trims_newline) {
    std::size_t to = end;
    if (sign == '-') {
      to = source_.size() - strip_front(std::string_view(source_).substr(end)).size();
    } else if (sign != '+' && trims_newline && to < source_.size() && source_[to] == '\n') {
      ++to;
    }
    advance(to);
  }

  // Returns where white space that begins at `from` ends.
  std::size_t behind_space(std::size_t from) const {
    return source_.size() - strip_front(std::string_view(source_).substr(from)).size();
  }

  // Reads a block {% raw %} with all that is in it. Returns whether there is one.
  bool enter_raw(std::size_t inside) {
    const std::size_t name = behind_space(inside);
    if (source_.compare(name, 3, "raw") != 0) return false;
    std::size_t end = behind_space(name + 3);
    const bool strips = end < source_.size() && source_[end] == '-';
    if (strips) ++end;
    if (source_.compare(end, 2, "%}") != 0) return false;
    end = strips ? behind_space(end + 2) : end + 2;
    advance(end);
    if (end == source_.size()) return true;  // as Jinja2 has it
    for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      const char next = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const char sign = next == '-' || next == '+' ? next : '\0';
      const std::size_t end_name = behind_space(tag + (sign == 0 ? 2 : 3));
      if (source_.compare(end_name, 6, "endraw") != 0) continue;
      std::size_t close = behind_space(end_name + 6);
      const char end_sign = close < source_.size() ? source_[close] : '\0';
      const bool has_sign = end_sign == '-' || end_sign == '+';
      if (has_sign) ++close;
      if (source_.compare(close, 2, "%}") != 0) continue;
      add(Kind::kData, data_before({tag, '%', sign}));
      leave(close + 2, has_sign ? end_sign : '\0', true);
      return true;
    }
    fail("the end of a raw block, {% endraw %}, is missing");
  }

  // Cuts the inside of a tag, up to its end.
  void cut_tag(char kind) {
    const std::size_t first = tokens_.size();
    while (true) {
      if (tokens_.size() - first > kTagPartsMax) {
        fail(fmt::format("a tag has more than {} parts", kTagPartsMax));
      }
      advance(behind_space(at_));
      if (at_ == source_.size()) fail(kind == '%' ? "%} is missing" : "}} is missing");
      if (open_.empty() && ends_tag(kind)) return;
      const char c = source_[at_];
      if (begins_name(c)) {
        cut_name();
      } else if (is_digit(c)) {
        cut_number();
      } else if (c == '"' || c == '\'') {
        cut_literal(c);
      } else {
        cut_operator();
      }
    }
  }

  bool ends_tag(char kind) {
    const std::string end = kind == '%' ? "%}" : "}}";
    char sign = source_[at_];
    const bool has_sign = sign == '-' || (sign == '+' && kind == '%');
    const std::size_t begin = at_ + (has_sign ? 1 : 0);
    if (source_.compare(begin, 2, end) != 0) return false;
    add(kind == '%' ? Kind::kBlockEnd : Kind::kPrintEnd, "");
    leave(begin + 2, has_sign ? sign : '\0', kind == '%');
    return true;
  }

  void cut_name() {
    std::size_t end = at_;
    while (end < source_.size() && is_in_name(source_[end])) ++end;
    add(Kind::kName, source_.substr(at_, end - at_));
    advance(end);
  }

  // Returns the end of digits with single underscores between them.
  std::size_t behind_digits(std::size_t from) const {
    std::size_t end = from;
    while (end < source_.size() &&
           (is_digit(source_[end]) || (end > from && source_[end] == '_' &&
                                       end + 1 < source_.size() && is_digit(source_[end + 1])))) {
      ++end;
    }
    return end;
  }

  void cut_number() {
    constexpr std::string_view kPrefixes = "xXoObB";
    if (source_[at_] == '0' && at_ + 1 < source_.size() &&
        kPrefixes.find(source_[at_ + 1]) != std::string_view::npos) {
      fail("numbers with the prefix 0x, 0o or 0b are not supported; write them as decimals");
    }
    std::size_t end = behind_digits(at_);
    // "x.0.1" is two keys and no number.
    const bool is_key = at_ > 0 && source_[at_ - 1] == '.';
    bool is_float = false;
    if (!is_key && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      end = behind_digits(end + 1);
      is_float = true;
    }
    if (!is_key && end + 1 < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const bool has_sign = source_[end + 1] == '+' || source_[end + 1] == '-';
      const std::size_t digits = end + (has_sign ? 2 : 1);
      if (digits < source_.size() && is_digit(source_[digits])) {
        end = behind_digits(digits);
        is_float = true;
      }
    }
    std::string number = source_.substr(at_, end - at_);
    std::erase(number, '_');
    if (!is_float && number.front() == '0' && number.find_first_not_of('0') != std::string::npos) {
      fail(fmt::format("the number {} begins with 0", number));
    }
    add(is_float ? Kind::kFloat : Kind::kInteger, std::move(number));
    advance(end);
  }

  void cut_literal(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("the end of a text in quotation marks is missing");
    const std::string_view literal = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    add(Kind::kText, LiteralReader(literal, line_).read());
    advance(end + 1);
  }

  void cut_operator() {
    constexpr auto kOperators = std::to_array<std::string_view>(
        {"==", "!=", ">=", "<=", "//", "**", "+", "-", "*", "/", "%", "~", "<",
         ">",  "=",  ".",  ":",  "|",  ",",  ";", "(", ")", "[", "]", "{", "}"});
    const auto found = std::ranges::find_if(
        kOperators, [&](std::string_view symbol) { return rest().starts_with(symbol); });
    if (found == kOperators.end()) {
      const std::size_t size = code_point_at(rest(), 0).size_bytes;
      fail(fmt::format("the character '{}' is not {}", rest().substr(0, size),
                       size > 1 ? "supported outside of texts" : "expected"));
    }
    balance(*found);
    add(Kind::kOperator, std::string(*found));
    advance(at_ + found->size());
  }

  // Keeps account of brackets: "}}" does not end a tag while a bracket is open.
  void balance(std::string_view symbol) {
    constexpr std::string_view kOpening = "([{";
    constexpr std::string_view kClosing = ")]}";
    if (symbol.size() != 1) return;
    if (const std::size_t kind = kOpening.find(symbol); kind != std::string_view::npos) {
      open_ += kClosing[kind];
    } else if (kClosing.find(symbol) != std::string_view::npos) {
      if (open_.empty() || open_.back() != symbol.front())
        fail(fmt::format("unexpected '{}'", symbol));
      open_.pop_back();
    }
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool begins_line_ = true;
  std::string open_;  // the closing brackets that are waited for
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> cut_tokens(std::string_view source) { return Lexer(source).cut(); }

}  // namespace terrace::jinja

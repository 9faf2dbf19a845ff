#include "runtime/tokenizer/regex_finder.h"

#define PCRE2_CODE_UNIT_WIDTH 8  // NOLINT(readability-identifier-naming): asked for by the header
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "runtime/tokenizer/newer_pattern.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace {
namespace {

constexpr std::size_t kJitStackBytes = std::size_t{32} << 10;
constexpr std::size_t kJitStackBytesMax = std::size_t{16} << 20;
constexpr const char* kUseItsLibrary =
    "convert text to token files with the tokenizer's own library";

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Code = std::unique_ptr<pcre2_code, Freed<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>>;

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text = {};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

class RegexFinder final : public PatternFinder {
 public:
  RegexFinder(Code code, std::string where) : code_(std::move(code)), where_(std::move(where)) {}

  void find_all(std::string_view text, FunctionRef<void(Span)> take) const override {
    const MatchData data(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    const MatchContext context(pcre2_match_context_create(nullptr));
    const JitStack stack(pcre2_jit_stack_create(kJitStackBytes, kJitStackBytesMax, nullptr));
    if (!data || !context) {
      throw OutOfMemory(fmt::format("{}: there is no memory for the matches", where_), "");
    }
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    for (std::size_t at = 0; at <= text.size();) {
      const int found = pcre2_match(code_.get(), units_of(text), text.size(), at,
                                    PCRE2_NO_UTF_CHECK, data.get(), context.get());
      if (found == PCRE2_ERROR_NOMATCH) return;
      if (found < 0) {
        throw ConfigError(fmt::format("{}: the match failed: {}", where_, message_of(found)),
                          kUseItsLibrary);
      }
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
      const Span span{ends[0], ends[1]};
      take(span);
      at = span.end;
      if (span.begin == span.end) {
        if (at == text.size()) return;
        at += code_point_at(text, at).size_bytes;
      }
    }
  }

 private:
  Code code_;
  std::string where_;
};

}  // namespace

std::unique_ptr<PatternFinder> make_regex_finder(const std::string& given,
                                                 const std::string& where) {
  const std::string pattern = with_newer_categories(given);
  for (const char* foreign : {"&&", "\\h", "\\H", "\\K", "\\G"}) {
    if (pattern.find(foreign) == std::string::npos) continue;
    throw ConfigError(fmt::format("{}: {} has another meaning in PCRE2", where, foreign),
                      kUseItsLibrary);
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(units_of(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset,
                          nullptr));
  if (!code) {
    throw ConfigError(fmt::format("{}: PCRE2 rejects the pattern: {} at byte {}", where,
                                  message_of(error), offset),
                      kUseItsLibrary);
  }
  // Matching gives the same without this, but is slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return std::make_unique<RegexFinder>(std::move(code), where);
}

std::string regex_unicode_version() {
  std::array<char, 32> version = {};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version.data());
  return version.data();
}

}  // namespace terrace

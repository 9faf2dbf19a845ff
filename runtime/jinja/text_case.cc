#include "runtime/jinja/text_case.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "runtime/jinja/python_text.h"
#include "runtime/jinja/special_casing.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace::jinja {
namespace {

constexpr char32_t kSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;
constexpr char32_t kDottedI = 0x130;

utf8proc_category_t category_of(char32_t point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(point));
}
char32_t simple_lower(char32_t point) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point)));
}
char32_t simple_upper(char32_t point) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(point)));
}

struct Range {
  char32_t first;
  char32_t last;
};
// Letters and signs that count as lower or upper, but have no other form.
constexpr auto kLowerOnly = std::to_array<Range>(
    {{0xAA, 0xAA},      {0xBA, 0xBA},       {0x2B0, 0x2B8},     {0x2C0, 0x2C1},
     {0x2E0, 0x2E4},    {0x37A, 0x37A},     {0x1D2C, 0x1D6A},   {0x1D78, 0x1D78},
     {0x1D9B, 0x1DBF},  {0x2071, 0x2071},   {0x207F, 0x207F},   {0x2090, 0x209C},
     {0x2C7C, 0x2C7D},  {0xA69C, 0xA69D},   {0xA770, 0xA770},   {0xA7F8, 0xA7F9},
     {0xAB5C, 0xAB5F},  {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0},
     {0x107B2, 0x107BA}});
constexpr auto kUpperOnly =
    std::to_array<Range>({{0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}});

template <typename Ranges>
bool is_among(const Ranges& ranges, char32_t point) {
  return std::ranges::any_of(
      ranges, [point](Range range) { return point >= range.first && point <= range.last; });
}

enum class Case : std::uint8_t { kNone, kLower, kUpper, kTitle };

Case case_of(char32_t point) {
  switch (category_of(point)) {
    case UTF8PROC_CATEGORY_LU:
      return Case::kUpper;
    case UTF8PROC_CATEGORY_LL:
      return Case::kLower;
    case UTF8PROC_CATEGORY_LT:
      return Case::kTitle;
    default:
      break;
  }
  if (simple_upper(point) != point || is_among(kLowerOnly, point)) return Case::kLower;
  if (simple_lower(point) != point || is_among(kUpperOnly, point)) return Case::kUpper;
  return Case::kNone;
}

// Returns whether the rule for the last sigma of a word looks past the code point.
bool is_ignored(char32_t point) {
  switch (category_of(point)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  constexpr std::u32string_view kWithinWords =
      U"'.:^`\u00A8\u00AD\u00AF\u00B4\u00B7\u00B8\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13"
      U"\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  return kWithinWords.find(point) != std::u32string_view::npos;
}

// Returns whether the sigma at `at` ends a word.
bool ends_word(std::string_view text, std::size_t at) {
  const auto first_not_ignored = [](std::string_view rest, auto take) {
    while (!rest.empty()) {
      const char32_t point = take(rest);
      if (!is_ignored(point)) return case_of(point) != Case::kNone;
    }
    return false;
  };
  const bool follows_letter = first_not_ignored(text.substr(0, at), [](std::string_view& rest) {
    const CodePoint point = code_point_before(rest, rest.size());
    rest.remove_suffix(point.size_bytes);
    return point.value;
  });
  const std::size_t size = code_point_at(text, at).size_bytes;
  return follows_letter && !first_not_ignored(text.substr(at + size), [](std::string_view& rest) {
           const CodePoint point = code_point_at(rest, 0);
           rest.remove_prefix(point.size_bytes);
           return point.value;
         });
}

void append_lower(std::string_view text, std::size_t at, std::string& out) {
  const char32_t point = code_point_at(text, at).value;
  if (point == kSigma && ends_word(text, at)) {
    append_utf8(kFinalSigma, out);
  } else if (point == kDottedI) {
    out += "i\u0307";
  } else {
    append_utf8(simple_lower(point), out);
  }
}

void append_upper(char32_t point, std::string& out) {
  if (const SpecialCasing* const special = find_special_casing(point)) {
    out += special->upper;
  } else {
    append_utf8(simple_upper(point), out);
  }
}

void append_title(char32_t point, std::string& out) {
  if (const SpecialCasing* const special = find_special_casing(point)) {
    out += special->title;
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(point))), out);
  }
}

template <typename Each>
void for_each_place(std::string_view text, const Each& each) {
  for (std::size_t at = 0; at < text.size(); at += code_point_at(text, at).size_bytes) each(at);
}

// Returns whether the text has letters of this case, and none of another.
bool has_case(std::string_view text, Case wanted) {
  bool has_wanted = false;
  bool has_other = false;
  for_each_place(text, [&](std::size_t at) {
    const Case its = case_of(code_point_at(text, at).value);
    has_wanted |= its == wanted;
    has_other |= its != wanted && its != Case::kNone;
  });
  return has_wanted && !has_other;
}

}  // namespace

std::string upper(std::string_view text) {
  std::string out;
  for_each_place(text, [&](std::size_t at) { append_upper(code_point_at(text, at).value, out); });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for_each_place(text, [&](std::size_t at) { append_lower(text, at, out); });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for_each_place(text, [&](std::size_t at) {
    if (at == 0) return append_title(code_point_at(text, at).value, out);
    append_lower(text, at, out);
  });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool follows_letter = false;
  for_each_place(text, [&](std::size_t at) {
    const char32_t point = code_point_at(text, at).value;
    if (follows_letter) {
      append_lower(text, at, out);
    } else {
      append_title(point, out);
    }
    follows_letter = case_of(point) != Case::kNone;
  });
  return out;
}

std::string title_of_words(std::string_view text) {
  constexpr std::string_view kBetween = "-({[<";
  const auto is_between = [&](char32_t point) {
    return is_space(point) ||
           (point < 0x80 && kBetween.find(static_cast<char>(point)) != std::string_view::npos);
  };
  std::string out;
  while (!text.empty()) {
    const bool is_separator = is_between(code_point_at(text, 0).value);
    std::size_t end = 0;
    while (end < text.size() && is_between(code_point_at(text, end).value) == is_separator) {
      end += code_point_at(text, end).size_bytes;
    }
    const std::size_t first = code_point_at(text, 0).size_bytes;
    out += upper(text.substr(0, first)) + lower(text.substr(first, end - first));
    text.remove_prefix(end);
  }
  return out;
}

bool is_upper(std::string_view text) { return has_case(text, Case::kUpper); }
bool is_lower(std::string_view text) { return has_case(text, Case::kLower); }

std::int64_t count_words(std::string_view text) {
  std::int64_t count = 0;
  bool is_within = false;
  for_each_place(text, [&](std::size_t at) {
    const char32_t point = code_point_at(text, at).value;
    const bool is_of_word = point == '_' || is_letter(point) || is_numeric(point);
    count += is_of_word && !is_within ? 1 : 0;
    is_within = is_of_word;
  });
  return count;
}

bool is_letter(char32_t point) {
  const utf8proc_category_t category = category_of(point);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t point) { return category_of(point) == UTF8PROC_CATEGORY_ND; }
bool is_numeric(char32_t point) {
  const utf8proc_category_t category = category_of(point);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

}  // namespace terrace::jinja

#include "runtime/tokenizer/newer_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "runtime/tokenizer/newer_categories.h"

namespace terrace {
namespace {

// Stands for Unicode's white space among the categories.
constexpr std::string_view kWhiteSpace = "s";
// PCRE2 also counts U+180E, which older versions of Unicode had among the white space.
constexpr const char* kWhiteSpaceRanges =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

// An escape \p{Lu}, \pL, \P{L}, \s or \S at the front of a text.
struct Property {
  std::string_view text;      // of the escape
  std::string_view category;  // one letter for a group of categories, or kWhiteSpace
  bool is_negated = false;
};

std::optional<Property> read_property(std::string_view text) {
  if (text.starts_with("\\s") || text.starts_with("\\S")) {
    return Property{text.substr(0, 2), kWhiteSpace, text[1] == 'S'};
  }
  if (!text.starts_with("\\p") && !text.starts_with("\\P")) return std::nullopt;
  const bool is_negated = text[1] == 'P';
  if (text.size() > 2 && text[2] != '{') {
    return Property{text.substr(0, 3), text.substr(2, 1), is_negated};
  }
  const std::size_t end = text.find('}');
  if (end == std::string_view::npos) return std::nullopt;
  return Property{text.substr(0, end + 1), text.substr(3, end - 3), is_negated};
}

bool is_known(std::string_view category) {
  constexpr std::string_view kGroups = "LMNPS";
  if (category == kWhiteSpace) return true;
  return !category.empty() && category.size() <= 2 &&
         kGroups.find(category.front()) != std::string_view::npos && category != "L&";
}

// Returns all code points of a category, as a part of a class in brackets; "" if PCRE2 knows them.
std::string ranges_of(std::string_view category) {
  if (category == kWhiteSpace) return kWhiteSpaceRanges;
  std::string ranges;
  for (const CategoryRange& range : newer_categories()) {
    if (!range.category.starts_with(category)) continue;
    ranges += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
  }
  return ranges.empty() ? "" : fmt::format("\\p{{{}}}{}", category, ranges);
}

// Goes through a pattern. Calls `take_property` with each property, and whether it stands in
// brackets, and `take_text` with all else, piece by piece.
template <typename TakeProperty, typename TakeText>
void walk(std::string_view pattern, const TakeProperty& take_property, const TakeText& take_text) {
  bool in_brackets = false;
  for (std::size_t at = 0; at < pattern.size();) {
    std::size_t size = 1;
    if (const std::optional<Property> property = read_property(pattern.substr(at))) {
      take_property(*property, in_brackets);
      at += property->text.size();
      continue;
    }
    if (pattern[at] == '\\') {
      size = std::min<std::size_t>(2, pattern.size() - at);
    } else if (pattern[at] == '[' && in_brackets) {
      const bool is_posix = pattern.substr(at).starts_with("[:");
      const std::size_t end = is_posix ? pattern.find(":]", at) : std::string_view::npos;
      if (end != std::string_view::npos) size = end + 2 - at;
    } else if (pattern[at] == '[') {
      in_brackets = true;
      if (pattern.substr(at + 1).starts_with('^')) ++size;
      // A bracket that closes right behind stands for itself.
      if (pattern.substr(at + size).starts_with(']')) ++size;
    } else if (pattern[at] == ']') {
      in_brackets = false;
    }
    take_text(pattern.substr(at, size));
    at += size;
  }
}

}  // namespace

std::string with_newer_categories(std::string_view pattern) {
  std::string newer;
  const auto take_property = [&](const Property& property, bool in_brackets) {
    const std::string ranges = is_known(property.category) ? ranges_of(property.category) : "";
    if (ranges.empty() || (in_brackets && property.is_negated)) {
      newer += property.text;
    } else if (in_brackets) {
      newer += ranges;
    } else {
      newer += fmt::format("[{}{}]", property.is_negated ? "^" : "", ranges);
    }
  };
  walk(pattern, take_property, [&](std::string_view text) { newer += text; });
  return newer;
}

bool has_older_classes(std::string_view pattern) {
  constexpr auto kClasses =
      std::to_array<std::string_view>({"\\w", "\\W", "\\d", "\\D", "\\b", "\\B", "\\X"});
  bool has = false;
  walk(
      pattern,
      [&](const Property& property, bool in_brackets) {
        has = has || !is_known(property.category) || (in_brackets && property.is_negated);
      },
      [&](std::string_view text) {
        has = has || text.starts_with("[:") || std::ranges::find(kClasses, text) != kClasses.end();
      });
  return has;
}

}  // namespace terrace

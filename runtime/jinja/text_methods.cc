#include "runtime/jinja/text_methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/jinja/arguments.h"
#include "runtime/jinja/errors.h"
#include "runtime/jinja/operators.h"
#include "runtime/jinja/python_text.h"
#include "runtime/jinja/text_case.h"
#include "runtime/tokenizer/utf8.h"

namespace terrace::jinja {
namespace {

Value text_value(std::string_view text) { return Value(std::string(text)); }

// Returns whether the text is not empty and all its code points have one of the categories.
template <typename Is>
Value all_are(std::string_view text, const Is& is) {
  bool holds = !text.empty();
  for (std::size_t at = 0; at < text.size() && holds;) {
    const CodePoint point = code_point_at(text, at);
    holds = is(point.value);
    at += point.size_bytes;
  }
  return Value(holds);
}

std::optional<std::string_view> characters_to_strip(std::string_view function,
                                                    const Arguments& arguments) {
  const ArgumentReader reader(function, arguments, {""});
  if (reader.value(0, "chars", Value()).is_none()) return std::nullopt;
  return reader.required_text(0, "chars");
}

Value strip_method(Context&, const std::string& text, const Arguments& arguments) {
  const auto characters = characters_to_strip("strip", arguments);
  return text_value(strip_end(strip_front(text, characters), characters));
}
Value lstrip_method(Context&, const std::string& text, const Arguments& arguments) {
  return text_value(strip_front(text, characters_to_strip("lstrip", arguments)));
}
Value rstrip_method(Context&, const std::string& text, const Arguments& arguments) {
  return text_value(strip_end(text, characters_to_strip("rstrip", arguments)));
}

// Splits at white space: str.split() without a separator.
std::vector<Value> split_at_space(std::string_view text, std::int64_t most) {
  std::vector<Value> parts;
  std::string_view rest = strip_front(text);
  while (!rest.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.push_back(text_value(rest));
      break;
    }
    std::size_t end = 0;
    while (end < rest.size() && !is_space(code_point_at(rest, end).value)) {
      end += code_point_at(rest, end).size_bytes;
    }
    parts.push_back(text_value(rest.substr(0, end)));
    rest = strip_front(rest.substr(end));
  }
  return parts;
}

std::vector<Value> rsplit_at_space(std::string_view text, std::int64_t most) {
  std::vector<Value> parts;
  std::string_view rest = strip_end(text);
  while (!rest.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.push_back(text_value(rest));
      break;
    }
    std::size_t begin = rest.size();
    while (begin > 0 && !is_space(code_point_before(rest, begin).value)) {
      begin -= code_point_before(rest, begin).size_bytes;
    }
    parts.push_back(text_value(rest.substr(begin)));
    rest = strip_end(rest.substr(0, begin));
  }
  std::ranges::reverse(parts);
  return parts;
}

void check_separator(const std::string& separator) {
  if (separator.empty()) throw RenderError("the separator of a split is empty");
}

// Bounds the time of looking for a text from the end, which may compare all of it at each place.
void check_short(const std::string& wanted) {
  constexpr std::size_t kBytesMost = 1024;
  if (wanted.size() <= kBytesMost) return;
  throw RenderError(fmt::format(
      "looking from the end for a text of more than {} bytes is not supported", kBytesMost));
}

Value split_method(Context& context, const std::string& text, const Arguments& arguments) {
  const ArgumentReader reader("split", arguments, {"sep", "maxsplit"});
  const std::int64_t most = reader.integer(1, "maxsplit", -1);
  context.spend_text(text.size());
  if (reader.value(0, "sep", Value()).is_none()) return Value::list(split_at_space(text, most));
  const std::string& separator = reader.required_text(0, "sep");
  check_separator(separator);
  std::vector<Value> parts;
  std::size_t begin = 0;
  for (std::size_t found = find_in(text, separator); found != std::string::npos;
       found = find_in(text, separator, begin)) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) break;
    parts.push_back(text_value(std::string_view(text).substr(begin, found - begin)));
    begin = found + separator.size();
  }
  parts.push_back(text_value(std::string_view(text).substr(begin)));
  return Value::list(std::move(parts));
}

Value rsplit_method(Context& context, const std::string& text, const Arguments& arguments) {
  const ArgumentReader reader("rsplit", arguments, {"sep", "maxsplit"});
  const std::int64_t most = reader.integer(1, "maxsplit", -1);
  context.spend_text(text.size());
  if (reader.value(0, "sep", Value()).is_none()) return Value::list(rsplit_at_space(text, most));
  const std::string& separator = reader.required_text(0, "sep");
  check_separator(separator);
  check_short(separator);
  std::vector<Value> parts;
  std::string_view rest = text;
  for (std::size_t found = rest.rfind(separator); found != std::string_view::npos;
       found = rest.rfind(separator)) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) break;
    parts.push_back(text_value(rest.substr(found + separator.size())));
    rest = rest.substr(0, found);
  }
  parts.push_back(text_value(rest));
  std::ranges::reverse(parts);
  return Value::list(std::move(parts));
}

bool ends_line(char32_t point) {
  return (point >= 0x0A && point <= 0x0D) || (point >= 0x1C && point <= 0x1E) || point == 0x85 ||
         point == 0x2028 || point == 0x2029;
}

Value splitlines_method(Context& context, const std::string& text, const Arguments& arguments) {
  const bool keeps_ends =
      ArgumentReader("splitlines", arguments, {"keepends"}).integer(0, "keepends", 0) != 0;
  context.spend_text(text.size());
  std::vector<Value> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const std::size_t end = at;
    at += point.size_bytes;
    if (!ends_line(point.value)) continue;
    if (point.value == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.emplace_back(text.substr(begin, (keeps_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return Value::list(std::move(lines));
}

// The part of a text that a method looks at, text[begin:end], and where it begins in code points.
struct Part {
  std::string_view text;
  std::int64_t begin = 0;
  bool is_outside = false;  // begins behind the end, where not even an empty text is found
};

Part part_of(const std::string& text, const ArgumentReader& reader) {
  const auto bound = [&](std::size_t index) {
    return reader.has(index, "") && !reader.value(index, "", Value()).is_none();
  };
  if (!bound(1) && !bound(2)) return {.text = text};
  const std::vector<std::string_view> characters = characters_of(text);
  const auto size = static_cast<std::int64_t>(characters.size());
  const auto clamped = [&](std::size_t index, std::int64_t otherwise) {
    if (!bound(index)) return otherwise;
    const std::int64_t at = reader.integer(index, "", 0);
    return at < 0 ? std::max<std::int64_t>(at + size, 0) : at;
  };
  const std::int64_t begin = clamped(1, 0);
  const std::int64_t end = std::min(clamped(2, size), size);
  if (begin > end) return {.text = {}, .begin = begin, .is_outside = true};
  const char* const origin = text.data();
  const auto place = [&](std::int64_t at) {
    return at == size
               ? text.size()
               : static_cast<std::size_t>(characters[static_cast<std::size_t>(at)].data() - origin);
  };
  return {.text = std::string_view(text).substr(place(begin), place(end) - place(begin)),
          .begin = begin};
}

template <typename Holds>
Value affix_holds(const std::string& text, const ArgumentReader& reader, const Holds& holds) {
  const Value& affix = reader.required(0, "the affix");
  refuse_undefined(affix);
  const Part part = part_of(text, reader);
  const auto holds_for = [&](const Value& value) {
    if (!value.is_text()) {
      throw RenderError(fmt::format("startswith and endswith take texts, and no value of type {}",
                                    value.type_name()));
    }
    return !part.is_outside && holds(part.text, value.text());
  };
  if (!affix.is_list() || !affix.list().is_tuple()) return Value(holds_for(affix));
  return Value(std::ranges::any_of(affix.items(), holds_for));
}

Value startswith_method(Context& context, const std::string& text, const Arguments& arguments) {
  const ArgumentReader reader("startswith", arguments, {"", "", ""});
  context.spend_text(text.size());
  return affix_holds(text, reader, [](std::string_view part, const std::string& prefix) {
    return part.starts_with(prefix);
  });
}
Value endswith_method(Context& context, const std::string& text, const Arguments& arguments) {
  const ArgumentReader reader("endswith", arguments, {"", "", ""});
  context.spend_text(text.size());
  return affix_holds(text, reader, [](std::string_view part, const std::string& suffix) {
    return part.ends_with(suffix);
  });
}
Value removeprefix_method(Context&, const std::string& text, const Arguments& arguments) {
  const std::string& prefix =
      ArgumentReader("removeprefix", arguments, {""}).required_text(0, "prefix");
  return Value(text.starts_with(prefix) ? text.substr(prefix.size()) : text);
}
Value removesuffix_method(Context&, const std::string& text, const Arguments& arguments) {
  const std::string& suffix =
      ArgumentReader("removesuffix", arguments, {""}).required_text(0, "suffix");
  return Value(text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text);
}

Value replace_method(Context& context, const std::string& text, const Arguments& arguments) {
  const ArgumentReader reader("replace", arguments, {"", "", ""});
  return Value(replace(context, text, reader.required_text(0, "old"),
                       reader.required_text(1, "new"), reader.integer(2, "count", -1)));
}

Value join_method(Context& context, const std::string& text, const Arguments& arguments) {
  const Value& list = ArgumentReader("join", arguments, {""}).required(0, "iterable");
  std::string joined;
  bool is_first = true;
  for (const Value& item : items_of(context, list)) {
    if (!item.is_text()) {
      throw RenderError(fmt::format("join takes texts, and no value of type {}", item.type_name()));
    }
    if (!is_first) joined += text;
    is_first = false;
    joined += item.text();
    context.spend_text(text.size() + item.text().size());
  }
  context.spend_text(joined.size());
  return Value(std::move(joined));
}

// Returns the place of a text in another one, in code points; -1 where it is not there.
template <bool IsFromEnd>
Value place_of_text(Context& context, const std::string& text, const Arguments& arguments) {
  const ArgumentReader reader("find", arguments, {"", "", ""});
  const std::string& wanted = reader.required_text(0, "sub");
  context.spend_text(text.size());
  const Part part = part_of(text, reader);
  if (part.is_outside) return Value(std::int64_t{-1});
  if (IsFromEnd) check_short(wanted);
  const std::size_t found = IsFromEnd ? part.text.rfind(wanted) : find_in(part.text, wanted);
  if (found == std::string::npos) return Value(std::int64_t{-1});
  return Value(part.begin + static_cast<std::int64_t>(length_of(part.text.substr(0, found))));
}

template <bool IsFromEnd>
Value index_method(Context& context, const std::string& text, const Arguments& arguments) {
  Value place = place_of_text<IsFromEnd>(context, text, arguments);
  if (place.integer() < 0) throw RenderError("the text that index looks for is not there");
  return place;
}

Value count_method(Context& context, const std::string& text, const Arguments& arguments) {
  const ArgumentReader reader("count", arguments, {"", "", ""});
  const std::string& wanted = reader.required_text(0, "sub");
  context.spend_text(text.size());
  const Part part = part_of(text, reader);
  if (part.is_outside) return Value(std::int64_t{0});
  if (wanted.empty()) return Value(static_cast<std::int64_t>(length_of(part.text)) + 1);
  std::int64_t count = 0;
  for (std::size_t at = find_in(part.text, wanted); at != std::string::npos;
       at = find_in(part.text, wanted, at + wanted.size())) {
    ++count;
  }
  return Value(count);
}

Value partition_of(const std::string& text, std::size_t found, std::size_t size, bool from_end) {
  const std::string_view view = text;
  if (found == std::string::npos) {
    return from_end ? Value::tuple({text_value(""), text_value(""), text_value(view)})
                    : Value::tuple({text_value(view), text_value(""), text_value("")});
  }
  return Value::tuple({text_value(view.substr(0, found)), text_value(view.substr(found, size)),
                       text_value(view.substr(found + size))});
}

Value partition_method(Context& context, const std::string& text, const Arguments& arguments) {
  const std::string& separator =
      ArgumentReader("partition", arguments, {""}).required_text(0, "sep");
  check_separator(separator);
  context.spend_text(text.size());
  return partition_of(text, find_in(text, separator), separator.size(), false);
}
Value rpartition_method(Context& context, const std::string& text, const Arguments& arguments) {
  const std::string& separator =
      ArgumentReader("rpartition", arguments, {""}).required_text(0, "sep");
  check_separator(separator);
  check_short(separator);
  context.spend_text(text.size());
  return partition_of(text, text.rfind(separator), separator.size(), true);
}

enum class Side : std::uint8_t { kLeft, kRight, kBoth };

// Fills the text up to a width: ljust, rjust and center put it at this side.
template <Side At>
Value pad_method(Context& context, const std::string& text, const Arguments& arguments) {
  const ArgumentReader reader("a method that fills up", arguments, {"", ""});
  reader.required(0, "width");
  const std::int64_t width = reader.integer(0, "width", 0);
  const auto length = static_cast<std::int64_t>(length_of(text));
  const std::string fill = reader.text(1, "fillchar", " ");
  if (length_of(fill) != 1) throw RenderError("a text is filled up with one character");
  if (width <= length) return Value(text);
  const std::int64_t missing = width - length;
  std::int64_t before = At == Side::kLeft ? 0 : missing;
  if (At == Side::kBoth) before = missing / 2 + (missing & width & 1);
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(missing), fill.size(), &bytes)) {
    bytes = UINT64_MAX;
  }
  context.spend_text(bytes);
  std::string padded;
  for (std::int64_t i = 0; i < before; ++i) padded += fill;
  padded += text;
  for (std::int64_t i = before; i < missing; ++i) padded += fill;
  return Value(std::move(padded));
}

Value zfill_method(Context& context, const std::string& text, const Arguments& arguments) {
  const ArgumentReader reader("zfill", arguments, {""});
  reader.required(0, "width");
  const auto length = static_cast<std::int64_t>(length_of(text));
  const std::int64_t width = reader.integer(0, "width", 0);
  if (width <= length) return Value(text);
  context.spend_text(static_cast<std::size_t>(width - length));
  const std::size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  return Value(text.substr(0, sign) + std::string(static_cast<std::size_t>(width - length), '0') +
               text.substr(sign));
}

template <std::string (*Change)(std::string_view)>
Value change_method(Context& context, const std::string& text, const Arguments& arguments) {
  expect_no_arguments("a change of case", arguments);
  context.spend_text(text.size());
  return Value(Change(text));
}

// A digit that is no decimal, as a superscript, is told from other numbers by a table of Unicode
// that is not here.
bool is_digit_point(char32_t point) {
  if (is_numeric(point) && !is_decimal(point)) {
    throw RenderError("isdigit of a number that is no decimal digit is not supported");
  }
  return is_decimal(point);
}
bool is_letter_or_number(char32_t point) { return is_letter(point) || is_numeric(point); }

template <bool (*Holds)(char32_t)>
Value all_method(Context&, const std::string& text, const Arguments& arguments) {
  expect_no_arguments("a method without arguments", arguments);
  return all_are(text, Holds);
}
template <bool (*Holds)(std::string_view)>
Value case_method(Context&, const std::string& text, const Arguments& arguments) {
  expect_no_arguments("a method without arguments", arguments);
  return Value(Holds(text));
}

struct NamedMethod {
  std::string_view name;
  TextMethod method;
};
constexpr auto kMethods = std::to_array<NamedMethod>({
    {"strip", strip_method},
    {"lstrip", lstrip_method},
    {"rstrip", rstrip_method},
    {"split", split_method},
    {"rsplit", rsplit_method},
    {"splitlines", splitlines_method},
    {"startswith", startswith_method},
    {"endswith", endswith_method},
    {"removeprefix", removeprefix_method},
    {"removesuffix", removesuffix_method},
    {"replace", replace_method},
    {"join", join_method},
    {"find", place_of_text<false>},
    {"rfind", place_of_text<true>},
    {"index", index_method<false>},
    {"rindex", index_method<true>},
    {"count", count_method},
    {"partition", partition_method},
    {"rpartition", rpartition_method},
    {"ljust", pad_method<Side::kLeft>},
    {"rjust", pad_method<Side::kRight>},
    {"center", pad_method<Side::kBoth>},
    {"zfill", zfill_method},
    {"upper", change_method<upper>},
    {"lower", change_method<lower>},
    {"capitalize", change_method<capitalize>},
    {"title", change_method<title>},
    {"isdigit", all_method<is_digit_point>},
    {"isdecimal", all_method<is_decimal>},
    {"isalpha", all_method<is_letter>},
    {"isalnum", all_method<is_letter_or_number>},
    {"isspace", all_method<is_space>},
    {"isupper", case_method<is_upper>},
    {"islower", case_method<is_lower>},
});
constexpr auto kMissing = std::to_array<std::string_view>(
    {"casefold", "encode", "expandtabs", "format", "format_map", "isascii", "isidentifier",
     "isnumeric", "isprintable", "istitle", "maketrans", "swapcase", "translate"});

}  // namespace

TextMethod find_text_method(std::string_view name) {
  const auto found = std::ranges::find(kMethods, name, &NamedMethod::name);
  return found == kMethods.end() ? nullptr : found->method;
}

bool is_missing_text_method(std::string_view name) {
  return std::ranges::find(kMissing, name) != kMissing.end();
}

std::string replace(Context& context, std::string_view text, std::string_view wanted,
                    std::string_view replacement, std::int64_t most) {
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at = 0; most != 0; --most) {
    // Nothing is found before each code point, and at the end.
    const std::size_t found = wanted.empty() ? at : find_in(text, wanted, at);
    if (found == std::string_view::npos || found > text.size()) break;
    out += text.substr(begin, found - begin);
    out += replacement;
    context.spend_text(found - begin + replacement.size());
    begin = found + wanted.size();
    at = !wanted.empty()        ? begin
         : found == text.size() ? found + 1
                                : found + code_point_at(text, found).size_bytes;
  }
  out += text.substr(begin);
  context.spend_text(out.size());
  return out;
}

}  // namespace terrace::jinja

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/jinja/arguments.h"
#include "runtime/jinja/errors.h"
#include "runtime/jinja/filters.h"
#include "runtime/jinja/operators.h"
#include "runtime/jinja/python_text.h"
#include "runtime/jinja/text_case.h"
#include "runtime/jinja/text_methods.h"
#include "runtime/tokenizer/utf8.h"

// Filters whose result is a text or a number.
namespace terrace::jinja {
namespace {

// Returns a filter that changes the text of its input.
template <std::string (*Change)(std::string_view)>
Value change_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("a filter of case", arguments);
  return Value(Change(text_of(context, input)));
}

Value trim_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("trim", arguments, {"chars"});
  const std::string text = text_of(context, input);
  std::optional<std::string_view> characters;
  if (!reader.value(0, "chars", Value()).is_none()) characters = reader.required_text(0, "chars");
  return Value(std::string(strip_end(strip_front(text, characters), characters)));
}

Value string_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("string", arguments);
  return input.is_markup() ? input : Value(text_of(context, input));
}

Value replace_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("replace", arguments, {"old", "new", "count"});
  const Value count = reader.value(2, "count", Value());
  return Value(replace(context, text_of(context, input),
                       text_of(context, reader.required(0, "old")),
                       text_of(context, reader.required(1, "new")),
                       count.is_none() ? -1 : reader.integer(2, "count", -1)));
}

Value length_filter(Context&, const Value& input, const Arguments& arguments) {
  expect_no_arguments("length", arguments);
  return Value(size_of(input));
}

Value default_filter(Context&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("default", arguments, {"default_value", "boolean"});
  const bool is_absent =
      input.is_undefined() || (reader.flag(1, "boolean", false) && !input.is_true());
  return is_absent ? reader.value(0, "default_value", Value(std::string())) : input;
}

Value escape_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("escape", arguments);
  if (input.is_markup()) return input;
  std::string text = text_of(context, input);
  for (const auto& [from, to] :
       {std::pair("&", "&amp;"), std::pair("<", "&lt;"), std::pair(">", "&gt;"),
        std::pair("'", "&#39;"), std::pair("\"", "&#34;")}) {
    text = replace(context, text, from, to, -1);
  }
  return Value::markup(std::move(text));
}

Value safe_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("safe", arguments);
  return Value::markup(text_of(context, input));
}

// Reads a whole text as a number, without white space around it.
template <typename T>
bool read_number(std::string_view text, T& number) {
  std::string plain(strip_end(strip_front(text)));
  const auto is_digit = [&](std::size_t i) {
    return i < plain.size() && plain[i] >= '0' && plain[i] <= '9';
  };
  for (const std::string_view character : characters_of(plain)) {
    if (character.size() > 1 && is_decimal(code_point_at(character, 0).value)) {
      throw RenderError("a number with digits beyond ASCII is not supported");
    }
  }
  // Digits may have underscores between them.
  for (std::size_t i = 1; i < plain.size(); ++i) {
    if (plain[i] == '_' && is_digit(i - 1) && is_digit(i + 1)) plain.erase(i, 1);
  }
  std::string_view digits = plain;
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  if (digits.find('(') != std::string_view::npos) return false;  // nan(...)
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

Value int_filter(Context&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("int", arguments, {"default", "base"});
  refuse_undefined(input);
  if (reader.integer(1, "base", 10) != 10) throw RenderError("int with a base is not supported");
  const Value otherwise = reader.value(0, "default", Value(std::int64_t{0}));
  if (input.is_number() && !input.is_float()) return Value(input.integer());
  double number = 0;
  if (input.is_float()) {
    number = input.number();
  } else if (std::int64_t whole = 0; input.is_text() && read_number(input.text(), whole)) {
    return Value(whole);
  } else if (!input.is_text() || !read_number(input.text(), number)) {
    return otherwise;
  }
  if (std::isnan(number) || (std::isinf(number) && input.is_text())) return otherwise;
  constexpr double kBeyond = 9223372036854775808.0;  // 2^63
  if (std::fabs(number) >= kBeyond) throw RenderError("a whole number does not fit in 64 bits");
  return Value(static_cast<std::int64_t>(number));
}

Value float_filter(Context&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("float", arguments, {"default"});
  refuse_undefined(input);
  if (input.is_number()) return Value(input.number());
  double number = 0;
  if (input.is_text() && read_number(input.text(), number)) return Value(number);
  return reader.value(0, "default", Value(0.0));
}

Value abs_filter(Context&, const Value& input, const Arguments& arguments) {
  expect_no_arguments("abs", arguments);
  if (input.is_float()) return Value(std::fabs(input.number()));
  refuse_undefined(input);
  if (!input.is_number()) throw RenderError("abs takes a number");
  if (input.integer() == INT64_MIN) throw RenderError("a whole number does not fit in 64 bits");
  return Value(input.integer() < 0 ? -input.integer() : input.integer());
}

// Returns round(number, precision): the nearest number with that many digits behind the point, and
// of two the one whose last digit is even.
Value rounded(double number, std::int64_t precision) {
  constexpr std::int64_t kDigitsMost = 400;
  if (!std::isfinite(number) || precision > kDigitsMost) return Value(number);
  if (precision >= 0) {
    return Value(std::strtod(fmt::format("{:.{}f}", number, precision).c_str(), nullptr));
  }
  throw RenderError("round of a float with a negative precision is not supported");
}

Value rounded(std::int64_t number, std::int64_t precision) {
  constexpr std::int64_t kTensMost = 18;  // 10^19 does not fit
  constexpr std::int64_t kTen = 10;
  if (precision >= 0) return Value(number);
  if (-precision > kTensMost) return Value(std::int64_t{0});
  std::int64_t unit = 1;
  for (std::int64_t i = 0; i < -precision; ++i) unit *= kTen;
  const std::int64_t rest = number % unit;
  const std::int64_t part = rest < 0 ? rest + unit : rest;
  std::int64_t result = 0;
  if (__builtin_sub_overflow(number, part, &result)) {
    throw RenderError("a whole number does not fit in 64 bits");
  }
  const bool is_odd = result / unit % 2 != 0;
  const bool goes_up = part > unit / 2 || (part == unit / 2 && is_odd);
  if (goes_up && __builtin_add_overflow(result, unit, &result)) {
    throw RenderError("a whole number does not fit in 64 bits");
  }
  return Value(result);
}

Value round_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("round", arguments, {"precision", "method"});
  refuse_undefined(input);
  const std::string method = reader.text(1, "method", "common");
  if (method != "common" && method != "ceil" && method != "floor") {
    throw RenderError("the method of round is common, ceil or floor");
  }
  if (!input.is_number()) throw RenderError("round takes a number");
  const std::int64_t precision = reader.integer(0, "precision", 0);
  if (method == "common") {
    return input.is_float() ? rounded(input.number(), precision)
                            : rounded(input.integer(), precision);
  }
  const Value scale = calculate(context, 'p', Value(std::int64_t{10}), Value(precision));
  const Value scaled = calculate(context, '*', input, scale);
  if (!scaled.is_float()) return calculate(context, '/', scaled, scale);
  const double whole = method == "ceil" ? std::ceil(scaled.number()) : std::floor(scaled.number());
  constexpr double kBeyond = 9223372036854775808.0;  // 2^63
  if (!(std::fabs(whole) < kBeyond)) throw RenderError("a whole number does not fit in 64 bits");
  return calculate(context, '/', Value(static_cast<std::int64_t>(whole)), scale);
}

// Puts `indent` before the lines of the text, but not before the first one, unless asked to.
Value indent_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("indent", arguments, {"width", "first", "blank"});
  refuse_undefined(input);
  if (!input.is_text()) throw RenderError("indent takes a text");
  const Value width = reader.value(0, "width", Value(std::int64_t{4}));
  std::string indent;
  if (width.is_text()) {
    indent = width.text();
  } else {
    const std::int64_t spaces = std::max<std::int64_t>(reader.integer(0, "width", 4), 0);
    context.spend_text(static_cast<std::size_t>(spaces));
    indent.assign(static_cast<std::size_t>(spaces), ' ');
  }
  const bool indents_blank = reader.flag(2, "blank", false);
  const std::string text = input.text() + '\n';
  std::string out;
  if (reader.flag(1, "first", false)) out = indent;
  bool is_first = true;
  const auto parts = find_text_method("splitlines")(context, text, {});
  for (const Value& line : parts.items()) {
    if (!is_first) out += '\n';
    if (!is_first && (indents_blank || !line.text().empty())) out += indent;
    is_first = false;
    out += line.text();
    context.spend_text(line.text().size() + indent.size());
  }
  context.spend_text(out.size());
  return Value(std::move(out));
}

Value tojson_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("tojson", arguments,
                              {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = reader.flag(0, "ensure_ascii", false);
  style.sorts_keys = reader.flag(3, "sort_keys", false);
  const Value indent = reader.value(1, "indent", Value());
  if (!indent.is_none()) {
    style.is_indented = true;
    style.between.pop_back();  // no space before the end of a line
    if (indent.is_text()) {
      style.indent = indent.text();
    } else {
      constexpr std::int64_t kMost = 64;
      const std::int64_t spaces = std::max<std::int64_t>(reader.integer(1, "indent", 0), 0);
      if (spaces > kMost) {
        throw RenderError(fmt::format("an indent of tojson above {} is not supported", kMost));
      }
      style.indent.assign(static_cast<std::size_t>(spaces), ' ');
    }
  }
  const Value separators = reader.value(2, "separators", Value());
  if (separators.is_list() && separators.items().size() == 2 && separators.items()[0].is_text() &&
      separators.items()[1].is_text()) {
    style.between = separators.items()[0].text();
    style.after_key = separators.items()[1].text();
  } else if (!separators.is_none()) {
    throw RenderError("the separators of tojson are two texts");
  }
  const std::size_t between = style.between.size() + style.after_key.size() + style.indent.size();
  context.spend(input.extent().work * (1 + between / 4));
  std::string text = to_json(input, style);
  context.spend_text(text.size());
  return Value(std::move(text));
}

Value wordcount_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("wordcount", arguments);
  return Value(count_words(text_of(context, input)));
}

Value center_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("center", arguments, {"width"});
  return find_text_method("center")(
      context, text_of(context, input),
      {.positional = {Value(reader.integer(0, "width", 80))}, .named = {}});
}

struct NamedTextFilter {
  std::string_view name;
  Filter filter;
};
constexpr auto kTextFilters = std::to_array<NamedTextFilter>({
    {"upper", change_filter<upper>},
    {"lower", change_filter<lower>},
    {"capitalize", change_filter<capitalize>},
    {"title", change_filter<title_of_words>},
    {"center", center_filter},
    {"trim", trim_filter},
    {"string", string_filter},
    {"replace", replace_filter},
    {"length", length_filter},
    {"count", length_filter},
    {"default", default_filter},
    {"d", default_filter},
    {"escape", escape_filter},
    {"e", escape_filter},
    {"safe", safe_filter},
    {"int", int_filter},
    {"float", float_filter},
    {"abs", abs_filter},
    {"round", round_filter},
    {"indent", indent_filter},
    {"tojson", tojson_filter},
    {"wordcount", wordcount_filter},
});

}  // namespace

Filter find_text_filter(std::string_view name) {
  const auto found = std::ranges::find(kTextFilters, name, &NamedTextFilter::name);
  return found == kTextFilters.end() ? nullptr : found->filter;
}

bool is_missing_filter(std::string_view name) {
  constexpr auto kMissing = std::to_array<std::string_view>(
      {"filesizeformat", "forceescape", "format", "pprint", "random", "slice", "striptags",
       "truncate", "urlencode", "urlize", "wordwrap", "xmlattr"});
  return std::ranges::find(kMissing, name) != kMissing.end();
}

Filter find_filter(std::string_view name) {
  const Filter filter = find_text_filter(name);
  return filter != nullptr ? filter : find_list_filter(name);
}

}  // namespace terrace::jinja

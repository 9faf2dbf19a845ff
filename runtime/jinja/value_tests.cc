#include "runtime/jinja/value_tests.h"

#include <algorithm>
#include <array>

#include "runtime/jinja/arguments.h"
#include "runtime/jinja/errors.h"
#include "runtime/jinja/filters.h"
#include "runtime/jinja/operators.h"
#include "runtime/jinja/python_text.h"
#include "runtime/jinja/text_case.h"

namespace terrace::jinja {
namespace {

bool has_rest(Context& context, const Value& value, const Value& divisor, std::int64_t rest) {
  return calculate(context, '%', value, divisor) == Value(rest);
}

template <std::int64_t Rest>
bool is_odd_or_even(Context& context, const Value& value, const Arguments& arguments) {
  expect_no_arguments("odd and even", arguments);
  return has_rest(context, value, Value(std::int64_t{2}), Rest);
}

bool is_divisible(Context& context, const Value& value, const Arguments& arguments) {
  const ArgumentReader reader("divisibleby", arguments, {"num"});
  return has_rest(context, value, reader.required(0, "num"), 0);
}

template <char First, char Second>
bool is_in_order(Context& context, const Value& value, const Arguments& arguments) {
  constexpr std::array<char, 3> kSymbol = {First, Second, '\0'};
  return compare(context, kSymbol.data(), value,
                 ArgumentReader(kSymbol.data(), arguments, {""}).required(0, "other"));
}

bool is_in(Context& context, const Value& value, const Arguments& arguments) {
  return contains(context, ArgumentReader("in", arguments, {"seq"}).required(0, "seq"), value);
}

bool is_same(Context&, const Value& value, const Arguments& arguments) {
  const Value& other = ArgumentReader("sameas", arguments, {"other"}).required(0, "other");
  const auto is_single = [](const Value& each) { return each.is_bool() || each.is_none(); };
  if (is_single(value) || is_single(other)) {
    return is_single(value) && is_single(other) && value.is_bool() == other.is_bool() &&
           value == other;
  }
  if (std::string_view(value.type_name()) != other.type_name()) return false;
  throw RenderError("the test sameas of other values than true, false and none is not supported");
}

bool is_iterable(const Value& value) {
  return value.is_text() || value.is_list() || value.is_mapping() || value.is_undefined() ||
         value.is_iterator() || value.is_markup();
}
// Returns whether the value has a length and items at places.
bool is_sequence(const Value& value) {
  return is_iterable(value) && !value.is_iterator() && !(value.is_list() && value.list().is_view());
}

bool is_all_upper(Context& context, const Value& value, const Arguments& arguments) {
  expect_no_arguments("upper and lower", arguments);
  const std::string text = text_of(context, value);
  return is_upper(text);
}
bool is_all_lower(Context& context, const Value& value, const Arguments& arguments) {
  expect_no_arguments("upper and lower", arguments);
  const std::string text = text_of(context, value);
  return is_lower(text);
}

bool is_filter(Context&, const Value& value, const Arguments& arguments) {
  expect_no_arguments("filter", arguments);
  if (!Mapping::is_key(value))
    throw RenderError("the name of a filter that is no text is not supported");
  if (value.is_text() && is_missing_filter(value.text())) return true;
  return value.is_text() && find_filter(value.text()) != nullptr;
}
bool is_test(Context&, const Value& value, const Arguments& arguments) {
  expect_no_arguments("test", arguments);
  if (!Mapping::is_key(value))
    throw RenderError("the name of a test that is no text is not supported");
  return value.is_text() && find_value_test(value.text()) != nullptr;
}

// Returns a test that looks at the value alone.
template <auto Property>
bool has(Context&, const Value& value, const Arguments& arguments) {
  expect_no_arguments("a test", arguments);
  return Property(value);
}

struct NamedTest {
  std::string_view name;
  ValueTest test;
};
constexpr auto kTests = std::to_array<NamedTest>({
    {"defined", has<[](const Value& value) { return !value.is_undefined(); }>},
    {"undefined", has<[](const Value& value) { return value.is_undefined(); }>},
    {"none", has<[](const Value& value) { return value.is_none(); }>},
    {"boolean", has<[](const Value& value) { return value.is_bool(); }>},
    {"true", has<[](const Value& value) { return value.is_bool() && value.boolean(); }>},
    {"false", has<[](const Value& value) { return value.is_bool() && !value.boolean(); }>},
    {"integer", has<[](const Value& value) { return value.is_integer(); }>},
    {"float", has<[](const Value& value) { return value.is_float(); }>},
    {"number", has<[](const Value& value) { return value.is_number(); }>},
    {"string", has<[](const Value& value) { return value.is_text() || value.is_markup(); }>},
    {"mapping", has<[](const Value& value) { return value.is_mapping(); }>},
    {"iterable", has<is_iterable>},
    {"sequence", has<is_sequence>},
    {"callable",
     has<[](const Value& value) { return value.is_callable() || value.is_undefined(); }>},
    {"escaped", has<[](const Value& value) { return value.is_markup(); }>},
    {"upper", is_all_upper},
    {"lower", is_all_lower},
    {"odd", is_odd_or_even<1>},
    {"even", is_odd_or_even<0>},
    {"divisibleby", is_divisible},
    {"in", is_in},
    {"sameas", is_same},
    {"equalto", is_in_order<'=', '='>},
    {"eq", is_in_order<'=', '='>},
    {"==", is_in_order<'=', '='>},
    {"ne", is_in_order<'!', '='>},
    {"!=", is_in_order<'!', '='>},
    {"lt", is_in_order<'<', '\0'>},
    {"lessthan", is_in_order<'<', '\0'>},
    {"<", is_in_order<'<', '\0'>},
    {"le", is_in_order<'<', '='>},
    {"<=", is_in_order<'<', '='>},
    {"gt", is_in_order<'>', '\0'>},
    {"greaterthan", is_in_order<'>', '\0'>},
    {">", is_in_order<'>', '\0'>},
    {"ge", is_in_order<'>', '='>},
    {">=", is_in_order<'>', '='>},
    {"filter", is_filter},
    {"test", is_test},
});

}  // namespace

ValueTest find_value_test(std::string_view name) {
  const auto found = std::ranges::find(kTests, name, &NamedTest::name);
  return found == kTests.end() ? nullptr : found->test;
}

}  // namespace terrace::jinja

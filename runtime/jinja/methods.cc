#include "runtime/jinja/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/jinja/arguments.h"
#include "runtime/jinja/context.h"
#include "runtime/jinja/errors.h"
#include "runtime/jinja/operators.h"
#include "runtime/jinja/text_methods.h"

namespace terrace::jinja {
namespace {

[[noreturn]] void refuse_method(const Value& value, const std::string& name, const char* why) {
  throw RenderError(fmt::format("the method {} of a {} {}", name, value.type_name(), why));
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

Value entries_as_tuples(const Mapping& mapping) {
  std::vector<Value> entries;
  for (const auto& [key, value] : mapping.entries()) entries.push_back(Value::tuple({key, value}));
  return Value::sequence(std::move(entries), List::Kind::kItems);
}

Value values_as_list(const Mapping& mapping) {
  std::vector<Value> values;
  for (const auto& [key, value] : mapping.entries()) values.push_back(value);
  return Value::sequence(std::move(values), List::Kind::kValues);
}

// Returns a method that holds its value.
template <typename Method>
Value bound_method(const Value& value, const std::string& name, Method method) {
  return Value(Callable{.name = name, .call = std::move(method), .extent = value.extent()});
}

// Returns list.index(value) or list.count(value).
Value list_search(Context& context, const std::string& name, const Value& list,
                  const Arguments& arguments) {
  if (name == "index" && arguments.positional.size() > 1) {
    throw RenderError("index of a list with bounds is not supported");
  }
  const Value& wanted = ArgumentReader(name, arguments, {""}).required(0, "value");
  if (name == "index") {
    const std::optional<std::size_t> place = place_in(context, list.items(), wanted);
    if (!place) throw RenderError("the value that index looks for is not there");
    return Value(static_cast<std::int64_t>(*place));
  }
  std::int64_t count = 0;
  for (const Value& item : list.items()) {
    count += compare(context, "==", item, wanted) ? 1 : 0;
  }
  return Value(count);
}

std::optional<Value> find_mapping_method(const Value& value, const std::string& name) {
  if (is_one_of(name, {"update", "pop", "popitem", "setdefault", "clear"})) {
    refuse_method(value, name, "would change it, which templates may not do");
  }
  if (name == "fromkeys") refuse_method(value, name, "is not supported");
  if (name == "get") {
    return bound_method(value, name, [value](Context& context, const Arguments& arguments) {
      const ArgumentReader reader("get", arguments, {"", ""});
      const Value& key = reader.required(0, "key");
      context.spend(key.extent().work);
      const Value* const found = value.mapping().find(key);
      return found != nullptr ? *found : reader.value(1, "default", Value());
    });
  }
  if (!is_one_of(name, {"items", "keys", "values", "copy"})) return std::nullopt;
  return bound_method(value, name, [value, name](Context& context, const Arguments& arguments) {
    expect_no_arguments(name, arguments);
    context.spend(value.mapping().size());
    if (name == "items") return entries_as_tuples(value.mapping());
    if (name == "values") return values_as_list(value.mapping());
    if (name == "copy") return value;
    return Value::sequence(items_of(context, value), List::Kind::kKeys);
  });
}

std::optional<Value> find_list_method(const Value& value, const std::string& name) {
  if (value.list().is_view()) {
    if (is_one_of(name, {"isdisjoint", "mapping"})) refuse_method(value, name, "is not supported");
    return std::nullopt;
  }
  const bool is_list = value.list().kind == List::Kind::kList;
  if (value.list().kind == List::Kind::kRange && is_one_of(name, {"start", "stop", "step"})) {
    refuse_method(value, name, "is not supported");
  }
  if (is_one_of(name,
                {"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"})) {
    if (!is_list) return std::nullopt;
    refuse_method(value, name, "would change it, which templates may not do");
  }
  if (!is_one_of(name, {"index", "count", "copy"}) || (name == "copy" && !is_list)) {
    return std::nullopt;
  }
  return bound_method(value, name, [value, name](Context& context, const Arguments& arguments) {
    if (name == "copy") {
      expect_no_arguments(name, arguments);
      return value;
    }
    return list_search(context, name, value, arguments);
  });
}

// Throws RenderError for attributes that Python's numbers, functions and generators have.
void refuse_attribute(const Value& value, const std::string& name) {
  const bool is_missing =
      (value.is_number() &&
       is_one_of(name, {"real", "imag", "numerator", "denominator", "bit_length", "bit_count",
                        "conjugate", "to_bytes", "from_bytes", "as_integer_ratio", "is_integer",
                        "hex", "fromhex"})) ||
      (value.is_callable() && is_one_of(name, {"name", "arguments", "catch_kwargs", "catch_varargs",
                                               "caller", "explicit_caller"})) ||
      (value.is_iterator() && is_one_of(name, {"close", "send", "throw"})) ||
      (value.is_markup() && !name.starts_with('_'));
  if (is_missing) refuse_method(value, name, "is not supported");
}

}  // namespace

std::optional<Value> find_method(const Value& value, const std::string& name) {
  if (value.is_mapping()) return find_mapping_method(value, name);
  if (value.is_list()) return find_list_method(value, name);
  refuse_attribute(value, name);
  if (!value.is_text()) return std::nullopt;
  if (is_missing_text_method(name)) refuse_method(value, name, "is not supported");
  const TextMethod method = find_text_method(name);
  if (method == nullptr) return std::nullopt;
  return bound_method(value, name, [value, method](Context& context, const Arguments& arguments) {
    return method(context, value.text(), arguments);
  });
}

}  // namespace terrace::jinja

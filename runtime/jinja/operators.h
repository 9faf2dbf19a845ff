#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/jinja/context.h"
#include "runtime/jinja/value.h"

// Python's operations on values. All throw RenderError where Python raises an exception.
namespace terrace::jinja {

// Applies + - * / %, 'f' for // and 'p' for **.
Value calculate(Context& context, char operation, const Value& left, const Value& right);
// Returns what `left symbol right` is, for == != < <= > >= in and "not in".
bool compare(Context& context, std::string_view symbol, const Value& left, const Value& right);
// Returns the place of the first item that equals `item`; nothing where there is none.
std::optional<std::size_t> place_in(Context& context, const std::vector<Value>& items,
                                    const Value& item);
// Returns whether `item` is in `container`.
bool contains(Context& context, const Value& container, const Value& item);

// Returns str(value), and accounts for it.
std::string text_of(Context& context, const Value& value);

// Returns the values that a loop over `value` goes through: items, keys or characters. An
// iterator gives all that it has left.
std::vector<Value> items_of(Context& context, const Value& value);
// The same, for a use that may leave some of an iterator's values, or that Jinja2 puts off until
// its result is used: the iterator cannot be used again.
std::vector<Value> items_held_of(Context& context, const Value& value);
// Returns len(value).
std::int64_t size_of(const Value& value);

// Returns value.name: a method of the value, or else its key of that name, or else an undefined
// value.
Value attribute_of(const Value& value, const std::string& name);
// Returns value[key]: the item, or else the method of that name, or else an undefined value.
Value item_of(Context& context, const Value& value, const Value& key);
// Returns what the path "a.b.0" leads to, as the filters map, selectattr and sort take it.
// `otherwise`, if it is not None, takes the place of an undefined value.
Value follow_path(Context& context, const Value& value, const Value& path,
                  const Value& otherwise = Value());

struct SliceBounds {
  std::optional<std::int64_t> begin;
  std::optional<std::int64_t> end;
  std::int64_t step = 1;
};
// Returns value[begin:end:step] of a text or a list.
Value slice_of(Context& context, const Value& value, const SliceBounds& bounds);

// Calls a function. Throws RenderError for a value that is none.
Value call(Context& context, const Value& function, const Arguments& arguments);

// Throws RenderError for a value that has a namespace in it, and so cannot be put into another one:
// they could hold each other, and would never be freed.
void refuse_names(const Value& value);
// Throws RenderError for an undefined value, which it names.
void refuse_undefined(const Value& value);

}  // namespace terrace::jinja

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/jinja/arguments.h"
#include "runtime/jinja/errors.h"
#include "runtime/jinja/filters.h"
#include "runtime/jinja/methods.h"
#include "runtime/jinja/operators.h"
#include "runtime/jinja/python_text.h"
#include "runtime/jinja/text_case.h"
#include "runtime/jinja/text_methods.h"
#include "runtime/jinja/value_tests.h"

// Filters that go through the items of a list, a mapping or a text.
namespace terrace::jinja {
namespace {

// Returns the arguments without the first `count` positional ones.
Arguments without_first(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  const auto begin = rest.positional.begin();
  rest.positional.erase(
      begin, begin + static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size())));
  return rest;
}

// Returns the item, or what its path leads to; of texts in lower case unless case counts.
Value sort_key(Context& context, const Value& item, const Value& path, bool is_case_sensitive) {
  Value key = follow_path(context, item, path);
  if (is_case_sensitive || !key.is_text()) return key;
  return Value(lower(key.text()));
}

// The same, as a list with a key for each of the paths, which a text has with commas between them.
// Equal keys of any type have no order to look for.
Value sort_keys(Context& context, const Value& item, const Value& paths, bool is_case_sensitive) {
  if (!paths.is_text()) return Value::list({sort_key(context, item, paths, is_case_sensitive)});
  std::vector<Value> keys;
  const Value path_list = find_text_method("split")(
      context, paths.text(), {.positional = {Value(std::string(","))}, .named = {}});
  for (const Value& path : path_list.items()) {
    keys.push_back(sort_key(context, item, path, is_case_sensitive));
  }
  return Value::list(std::move(keys));
}

bool is_less(Context& context, const Value& a, const Value& b) {
  context.spend(1);
  return compare(context, "<", a, b);
}

Value list_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("list", arguments);
  return Value::list(items_of(context, input));
}

Value first_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("first", arguments);
  std::vector<Value> items = items_held_of(context, input);
  if (items.empty()) return Value(Undefined{"No first item, sequence was empty."});
  return items.front();
}

Value last_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("last", arguments);
  if (input.is_iterator())
    throw RenderError("last does not take what map, select or the like return");
  std::vector<Value> items = items_of(context, input);
  if (items.empty()) return Value(Undefined{"No last item, sequence was empty."});
  return items.back();
}

Value reverse_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("reverse", arguments);
  if (input.is_text()) return slice_of(context, input, {.begin = {}, .end = {}, .step = -1});
  std::vector<Value> items = items_of(context, input);
  std::ranges::reverse(items);
  if (input.is_iterator()) return Value::list(std::move(items));
  return Value::iterator(std::move(items));
}

Value join_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("join", arguments, {"d", "attribute"});
  const std::string between = text_of(context, reader.value(0, "d", Value(std::string())));
  const Value path = reader.value(1, "attribute", Value());
  std::string joined;
  bool is_first = true;
  for (const Value& item : items_of(context, input)) {
    if (!is_first) joined += between;
    is_first = false;
    joined += text_of(context, follow_path(context, item, path));
    context.spend_text(between.size());
  }
  context.spend_text(joined.size());
  return Value(std::move(joined));
}

Value items_filter(Context& context, const Value& input, const Arguments& arguments) {
  expect_no_arguments("items", arguments);
  if (input.is_undefined()) return Value::iterator({});
  if (!input.is_mapping()) throw RenderError("items takes a mapping");
  return Value::iterator(items_of(context, call(context, attribute_of(input, "items"), {})));
}

// Applies a filter, or takes an attribute, of each item.
Value map_filter(Context& context, const Value& input, const Arguments& arguments) {
  std::vector<Value> mapped;
  if (!input.is_true()) return Value::iterator({});
  if (arguments.positional.empty() && arguments.find(0, "attribute") != nullptr) {
    for (const auto& [name, value] : arguments.named) {
      if (name != "attribute" && name != "default") {
        throw RenderError(fmt::format("map takes no argument {}", name));
      }
    }
    const Value* const otherwise = arguments.find(0, "default");
    for (const Value& item : items_held_of(context, input)) {
      mapped.push_back(follow_path(context, item, *arguments.find(0, "attribute"),
                                   otherwise != nullptr ? *otherwise : Value()));
    }
    return Value::iterator(std::move(mapped));
  }
  if (arguments.positional.empty() || !arguments.positional[0].is_text()) {
    throw RenderError("map needs the name of a filter");
  }
  const std::string& name = arguments.positional[0].text();
  const Filter filter = find_filter(name);
  const std::vector<Value> items = items_held_of(context, input);
  if (filter == nullptr && !items.empty()) {
    throw RenderError(fmt::format("the filter {} is not {}", name,
                                  is_missing_filter(name) ? "supported" : "known"));
  }
  const Arguments rest = without_first(arguments, 1);
  for (const Value& item : items) {
    if (item.is_markup())
      throw RenderError("map of the results of safe or escape is not supported");
    mapped.push_back(filter(context, item, rest));
  }
  return Value::iterator(std::move(mapped));
}

// Keeps the items for which a test holds, or does not hold: select, reject and, with an attribute
// of the items, selectattr and rejectattr.
template <bool Keeps, bool HasPath>
Value select_filter(Context& context, const Value& input, const Arguments& arguments) {
  constexpr std::size_t kTestAt = HasPath ? 1 : 0;
  if (!input.is_true()) return Value::iterator({});
  const std::vector<Value>& given = arguments.positional;
  if (HasPath && given.empty()) throw RenderError("selectattr and rejectattr need an attribute");
  const Value path = HasPath ? given[0] : Value();
  ValueTest test = nullptr;
  if (given.size() > kTestAt) {
    if (!given[kTestAt].is_text()) throw RenderError("the name of a test is a text");
    const std::string& name = given[kTestAt].text();
    test = find_value_test(name);
  }
  const Arguments rest = without_first(arguments, kTestAt + 1);
  std::vector<Value> kept;
  for (const Value& item : items_held_of(context, input)) {
    const Value tested = follow_path(context, item, path);
    if (test == nullptr && given.size() > kTestAt) {
      throw RenderError(fmt::format("the test {} is not known", given[kTestAt].text()));
    }
    const bool holds = test == nullptr ? tested.is_true() : test(context, tested, rest);
    if (holds == Keeps) kept.push_back(item);
  }
  return Value::iterator(std::move(kept));
}

using KeyedItems = std::vector<std::pair<Value, Value>>;

// Returns the items in the order of their keys; equal ones stay in their order.
Value sorted_items(Context& context, KeyedItems keyed, bool is_reversed) {
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return is_reversed ? is_less(context, b.first, a.first) : is_less(context, a.first, b.first);
  });
  std::vector<Value> sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return Value::list(std::move(sorted));
}

Value sort_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool is_case_sensitive = reader.flag(1, "case_sensitive", false);
  const Value path = reader.value(2, "attribute", Value());
  KeyedItems keyed;
  for (Value& item : items_of(context, input)) {
    Value key = sort_keys(context, item, path, is_case_sensitive);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  return sorted_items(context, std::move(keyed), reader.flag(0, "reverse", false));
}

Value dictsort_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  refuse_undefined(input);
  if (!input.is_mapping()) throw RenderError("dictsort takes a mapping");
  const std::string by = reader.text(1, "by", "key");
  if (by != "key" && by != "value") throw RenderError("dictsort sorts by key or by value");
  const Value place(std::int64_t{by == "value" ? 1 : 0});
  const bool is_case_sensitive = reader.flag(0, "case_sensitive", false);
  KeyedItems keyed;
  for (Value& item : items_of(context, call(context, attribute_of(input, "items"), {}))) {
    Value key = sort_key(context, item, place, is_case_sensitive);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  return sorted_items(context, std::move(keyed), reader.flag(2, "reverse", false));
}

Value unique_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("unique", arguments, {"case_sensitive", "attribute"});
  const bool is_case_sensitive = reader.flag(0, "case_sensitive", false);
  const Value path = reader.value(1, "attribute", Value());
  Mapping seen;
  std::vector<Value> unique;
  for (Value& item : items_held_of(context, input)) {
    const Value key = sort_key(context, item, path, is_case_sensitive);
    context.spend(key.extent().work);
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value());
    unique.push_back(std::move(item));
  }
  return Value::iterator(std::move(unique));
}

// Returns the least item, or the greatest.
template <bool IsLeast>
Value extreme_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(IsLeast ? "min" : "max", arguments, {"case_sensitive", "attribute"});
  const bool is_case_sensitive = reader.flag(0, "case_sensitive", false);
  const Value path = reader.value(1, "attribute", Value());
  std::optional<std::pair<Value, Value>> best;
  for (Value& item : items_of(context, input)) {
    Value key = sort_key(context, item, path, is_case_sensitive);
    const bool is_better = !best || (IsLeast ? is_less(context, key, best->first)
                                             : is_less(context, best->first, key));
    if (is_better) best.emplace(std::move(key), std::move(item));
  }
  if (!best) return Value(Undefined{"No aggregated item, sequence was empty."});
  return best->second;
}

Value sum_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("sum", arguments, {"attribute", "start"});
  const Value path = reader.value(0, "attribute", Value());
  Value sum = reader.value(1, "start", Value(std::int64_t{0}));
  if (sum.is_text()) throw RenderError("sum does not take texts; use join");
  for (const Value& item : items_of(context, input)) {
    sum = calculate(context, '+', sum, follow_path(context, item, path));
  }
  return sum;
}

Value batch_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("batch", arguments, {"linecount", "fill_with"});
  reader.required(0, "linecount");
  const std::int64_t size = reader.integer(0, "linecount", 1);
  if (size < 1) throw RenderError("batch with a count below 1 is not supported");
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (Value& item : items_held_of(context, input)) {
    if (static_cast<std::int64_t>(batch.size()) == size) {
      batches.push_back(Value::list(std::exchange(batch, {})));
    }
    batch.push_back(std::move(item));
  }
  if (!batch.empty()) {
    const Value fill = reader.value(1, "fill_with", Value());
    if (!fill.is_none()) {
      context.spend_text(static_cast<std::size_t>(size) * sizeof(Value));
      batch.resize(static_cast<std::size_t>(size), fill);
    }
    batches.push_back(Value::list(std::move(batch)));
  }
  return Value::iterator(std::move(batches));
}

Value without_items(const Value& mapping, const std::string& name) {
  return find_method(mapping, name) ? mapping : Value(Mapping());
}

Value groupby_filter(Context& context, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("groupby", arguments, {"attribute", "default", "case_sensitive"});
  const Value& path = reader.required(0, "attribute");
  const Value otherwise = reader.value(1, "default", Value());
  const bool is_case_sensitive = reader.flag(2, "case_sensitive", false);
  const auto key_of = [&](const Value& item) {
    const Value key = follow_path(context, item, path, otherwise);
    return is_case_sensitive || !key.is_text() ? key : Value(lower(key.text()));
  };
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items_of(context, input)) {
    Value key = key_of(item);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  std::ranges::stable_sort(
      keyed, [&](const auto& a, const auto& b) { return is_less(context, a.first, b.first); });
  std::vector<Value> groups;
  for (std::size_t begin = 0; begin < keyed.size();) {
    std::vector<Value> group;
    std::size_t end = begin;
    while (end < keyed.size() && compare(context, "==", keyed[end].first, keyed[begin].first)) {
      group.push_back(keyed[end++].second);
    }
    if (end == begin) throw RenderError("groupby by a value that is not a number is not supported");
    const Value key = follow_path(context, group.front(), path, otherwise);
    groups.push_back(Value::sequence({key, Value::list(std::move(group))}, List::Kind::kGroup));
    begin = end;
  }
  return Value::list(std::move(groups));
}

// Returns an attribute, and never an item.
Value attr_filter(Context&, const Value& input, const Arguments& arguments) {
  const std::string& name = ArgumentReader("attr", arguments, {"name"}).required_text(0, "name");
  refuse_undefined(input);
  return attribute_of(input.is_mapping() ? without_items(input, name) : input, name);
}

// Jinja2 runs these filters when their result is used, and so an error of theirs is one only then.
template <Filter Inner>
Value lazy(Context& context, const Value& input, const Arguments& arguments) {
  try {
    return Inner(context, input, arguments);
  } catch (const RenderError& problem) {
    Value iterator = Value::iterator({});
    iterator.iterator().problem = problem.what();
    return iterator;
  }
}

struct NamedListFilter {
  std::string_view name;
  Filter filter;
};
constexpr auto kListFilters = std::to_array<NamedListFilter>({
    {"list", list_filter},
    {"first", first_filter},
    {"last", last_filter},
    {"reverse", reverse_filter},
    {"join", join_filter},
    {"items", lazy<items_filter>},
    {"map", lazy<map_filter>},
    {"select", lazy<select_filter<true, false>>},
    {"reject", lazy<select_filter<false, false>>},
    {"selectattr", lazy<select_filter<true, true>>},
    {"rejectattr", lazy<select_filter<false, true>>},
    {"sort", sort_filter},
    {"dictsort", dictsort_filter},
    {"unique", lazy<unique_filter>},
    {"min", extreme_filter<true>},
    {"max", extreme_filter<false>},
    {"sum", sum_filter},
    {"batch", lazy<batch_filter>},
    {"groupby", groupby_filter},
    {"attr", attr_filter},
});

}  // namespace

Filter find_list_filter(std::string_view name) {
  const auto found = std::ranges::find(kListFilters, name, &NamedListFilter::name);
  return found == kListFilters.end() ? nullptr : found->filter;
}

}  // namespace terrace::jinja

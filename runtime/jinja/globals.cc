#include "runtime/jinja/globals.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/jinja/arguments.h"
#include "runtime/jinja/errors.h"
#include "runtime/jinja/operators.h"
#include "runtime/jinja/python_text.h"

namespace terrace::jinja {
namespace {

Value range_function(Context& context, const Arguments& arguments) {
  constexpr std::int64_t kMost = 100'000;  // as in Jinja2's sandbox
  const ArgumentReader reader("range", arguments, {"", "", ""});
  reader.required(0, "stop");
  const bool has_begin = reader.has(1, "stop");
  const std::int64_t begin = has_begin ? reader.integer(0, "start", 0) : 0;
  const std::int64_t end = reader.integer(has_begin ? 1 : 0, "stop", 0);
  const std::int64_t step = reader.integer(2, "step", 1);
  if (step == 0) throw RenderError("the step of range is 0");
  std::vector<Value> numbers;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<std::int64_t>(numbers.size()) == kMost) {
      throw RenderError(fmt::format("range has more than {} numbers", kMost));
    }
    numbers.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  context.spend(numbers.size());
  return Value::sequence(std::move(numbers), List::Kind::kRange);
}

// Returns what dict() and namespace() take: a mapping or pairs, and named values.
Mapping mapping_of(Context& context, const Arguments& arguments, const char* function) {
  if (arguments.positional.size() > 1) {
    throw RenderError(fmt::format("{} takes at most 1 argument without a name", function));
  }
  Mapping mapping;
  if (!arguments.positional.empty()) {
    const Value& first = arguments.positional.front();
    refuse_undefined(first);
    if (first.is_mapping()) {
      mapping = first.mapping();
    } else {
      for (const Value& pair : items_of(context, first)) {
        const std::vector<Value> both = items_of(context, pair);
        if (both.size() != 2) {
          throw RenderError(fmt::format("{} takes a mapping or pairs", function));
        }
        mapping.set(both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) mapping.set(name, value);
  return mapping;
}

Value dict_function(Context& context, const Arguments& arguments) {
  return Value(mapping_of(context, arguments, "dict"));
}

Value namespace_function(Context& context, const Arguments& arguments) {
  Mapping values = mapping_of(context, arguments, "namespace");
  for (const auto& [name, value] : values.entries()) refuse_names(value);
  return Value(std::make_shared<Namespace>(Namespace{.values = std::move(values)}));
}

Value raise_exception(Context& context, const Arguments& arguments) {
  throw RenderError(text_of(
      context, ArgumentReader("raise_exception", arguments, {"message"}).required(0, "message")));
}

Value strftime_now(Context& context, const Arguments& arguments) {
  const std::string form =
      ArgumentReader("strftime_now", arguments, {"format"}).required_text(0, "format");
  if (form.empty()) return Value(std::string());
  const std::time_t now = std::chrono::system_clock::to_time_t(context.now());
  std::tm local = {};
  localtime_r(&now, &local);
  std::array<char, 1024> buffer;
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), form.c_str(), &local);
  if (size == 0) throw RenderError("the format of strftime_now makes a text that is too long");
  return Value(std::string(buffer.data(), size));
}

// Returns an object that gives nothing at the first call, and the separator at the others.
Value joiner_function(Context&, const Arguments& arguments) {
  const ArgumentReader reader("joiner", arguments, {"sep"});
  const Value separator = reader.value(0, "sep", Value(std::string(", ")));
  const auto is_used = std::make_shared<bool>(false);
  return Value(Callable{.name = "joiner",
                        .call =
                            [separator, is_used](Context&, const Arguments& none) {
                              expect_no_arguments("joiner", none);
                              return std::exchange(*is_used, true) ? separator
                                                                   : Value(std::string());
                            },
                        .extent = separator.extent()});
}

// Returns an object whose attribute `current` goes through the arguments, again and again, as
// next() is called.
Value cycler_function(Context&, const Arguments& arguments) {
  const Value items = Value::tuple(arguments.positional);
  if (!arguments.named.empty()) throw RenderError("cycler takes no arguments with names");
  if (items.items().empty()) throw RenderError("at least one item has to be provided");
  for (const Value& item : items.items()) refuse_names(item);
  const auto at = std::make_shared<std::size_t>(0);
  const auto names = std::make_shared<Namespace>(Namespace{.values = {}, .is_fixed = true});
  // Weak: the object holds its methods.
  const auto move_to = [items, at, held = std::weak_ptr<Namespace>(names)](std::size_t to) {
    *at = to % items.items().size();
    if (const auto object = held.lock()) object->values.set("current", items.items()[*at]);
  };
  const auto next = [items, at, move_to](Context&, const Arguments& none) {
    expect_no_arguments("next", none);
    Value current = items.items()[*at];
    move_to(*at + 1);
    return current;
  };
  const auto reset = [move_to](Context&, const Arguments& none) {
    expect_no_arguments("reset", none);
    move_to(0);
    return Value();
  };
  move_to(0);
  names->values.set("next", Value(Callable{.name = "next", .call = next}));
  names->values.set("reset", Value(Callable{.name = "reset", .call = reset}));
  return Value(names);
}

Value lipsum_function(Context&, const Arguments&) {
  throw RenderError("the function lipsum is not supported");
}

}  // namespace

void add_globals(Context& context) {
  const auto add = [&context](const char* name, Value (*function)(Context&, const Arguments&)) {
    context.scope()->set(name, Value(Callable{.name = name, .call = function}));
  };
  add("range", range_function);
  add("dict", dict_function);
  add("namespace", namespace_function);
  add("joiner", joiner_function);
  add("cycler", cycler_function);
  add("lipsum", lipsum_function);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
}

}  // namespace terrace::jinja

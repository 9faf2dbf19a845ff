#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

// The values that a chat template works on. They behave as Python's do, because the templates were
// written for Jinja2, and Jinja2 hands out Python's own values.
namespace terrace::jinja {

class Context;
class Value;
class Mapping;
struct Arguments;

struct None {};
// The value of a name or a key that is not there. It may be printed (as nothing), tested and looped
// over; anything else is an error that names it.
struct Undefined {
  std::string what;  // "'tools' is undefined"
};
// How much a value holds. Rendering accounts for work by it, because equal parts may be shared.
struct Extent {
  std::uint64_t work = 1;    // a unit for each part, and for 16 bytes of text
  std::uint32_t levels = 0;  // of lists and mappings within each other
  bool has_names = false;    // a namespace is a part of it

  // Adds what a part holds. Throws RenderError if the whole is more than a value may be.
  void add(const Extent& part);
};
// A sequence of values. The last three of the kinds are Python's views of a mapping.
struct List {
  enum class Kind : std::uint8_t { kList, kTuple, kGroup, kRange, kKeys, kValues, kItems };
  std::vector<Value> items;
  Kind kind = Kind::kList;
  Extent extent = {};  // set by Value

  // The filter groupby makes groups: tuples with the attributes grouper and list.
  bool is_tuple() const { return kind == Kind::kTuple || kind == Kind::kGroup; }
  bool is_view() const { return kind >= Kind::kKeys; }
};
// Python's generators, which the filters map, select and others return: values that can be gone
// through once.
struct Iterator {
  enum class State : std::uint8_t { kFresh, kDone, kHeld };
  std::vector<Value> items;
  Extent extent;
  State state = State::kFresh;
  std::string problem;  // why the items could not be made, which is an error only if they are used
};
// Something that a template can call: a macro, a method bound to its value, or a global function.
struct Callable {
  std::string name;
  std::function<Value(Context&, const Arguments&)> call;
  Extent extent = {};  // of the values that it holds
};
// The result of the filters safe and escape: Jinja2's Markup. It is printed as a text. Most other
// operations on it are refused, since in Jinja2 they would escape the texts that they add.
struct Markup {
  std::string text;
};
// The only value that a template may change: {% set ns.found = true %}.
struct Namespace;

// A value of a template. Copies share the contents of texts, lists and mappings, which never
// change.
class Value {
 public:
  Value() : content_(None{}) {}
  explicit Value(bool value) : content_(value) {}
  explicit Value(std::int64_t value) : content_(value) {}
  explicit Value(double value) : content_(value) {}
  // The text is valid UTF-8.
  explicit Value(std::string text);
  explicit Value(List list);
  explicit Value(Mapping mapping);
  explicit Value(Undefined undefined);
  explicit Value(Callable callable);
  explicit Value(std::shared_ptr<Namespace> names) : content_(std::move(names)) {}
  explicit Value(const char*) = delete;
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value sequence(std::vector<Value> items, List::Kind kind);
  static Value iterator(std::vector<Value> items);
  static Value markup(std::string text);

  bool is_undefined() const { return holds<std::shared_ptr<const Undefined>>(); }
  bool is_none() const { return holds<None>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_integer() const { return holds<std::int64_t>(); }  // without bool
  bool is_float() const { return holds<double>(); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }
  bool is_text() const { return holds<std::shared_ptr<const std::string>>(); }
  bool is_list() const { return holds<std::shared_ptr<const List>>(); }  // of any kind
  bool is_iterator() const { return holds<std::shared_ptr<Iterator>>(); }
  bool is_markup() const { return holds<std::shared_ptr<const Markup>>(); }
  bool is_mapping() const { return holds<std::shared_ptr<const Mapping>>(); }
  bool is_callable() const { return holds<std::shared_ptr<const Callable>>(); }
  bool is_namespace() const { return holds<std::shared_ptr<Namespace>>(); }

  // The value must be of the kind that is asked for.
  bool boolean() const { return std::get<bool>(content_); }
  std::int64_t integer() const;  // also of a bool: 0 or 1
  double number() const;         // of any number
  const std::string& text() const;
  const List& list() const { return *std::get<std::shared_ptr<const List>>(content_); }
  const std::vector<Value>& items() const { return list().items; }
  const Mapping& mapping() const;
  const Callable& callable() const;
  const std::string& undefined_what() const;
  const std::string& markup() const;
  Iterator& iterator() const { return *std::get<std::shared_ptr<Iterator>>(content_); }
  Namespace& names() const;

  Extent extent() const;

  // Returns Python's name of the type: "str", "dict".
  const char* type_name() const;
  // Returns what Python's bool() does.
  bool is_true() const;

  // Returns whether the values are equal as in Python: 1 == 1.0 == True, "1" != 1.
  friend bool operator==(const Value& a, const Value& b);

 private:
  template <typename T>
  bool holds() const {
    return std::holds_alternative<T>(content_);
  }

  std::variant<None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Mapping>,
               std::shared_ptr<const Undefined>, std::shared_ptr<const Callable>,
               std::shared_ptr<Namespace>, std::shared_ptr<Iterator>, std::shared_ptr<const Markup>>
      content_;
};

// Returns the exact order of two numbers, as in Python.
std::partial_ordering order_of_numbers(const Value& a, const Value& b);

// Keys with values, in the order in which the keys were added first: Python's dict.
class Mapping {
 public:
  using Entry = std::pair<Value, Value>;

  Mapping() = default;

  // Adds the key, or replaces its value. A key that is a list, a mapping or the like is refused
  // with a RenderError.
  void set(const Value& key, Value value);
  void set(std::string_view key, Value value) { set(Value(std::string(key)), std::move(value)); }
  // Returns the key's value; null where there is none. Valid until the mapping changes.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  // Returns whether the value may be a key, as Python's values with a hash.
  static bool is_key(const Value& value);
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  void erase(std::string_view key);

  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  const Extent& extent() const { return extent_; }  // never less, where values were replaced

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> places_;  // of each key in entries_, by key_text()
  Extent extent_;
};

struct Namespace {
  Mapping values;
  bool is_fixed = false;  // `loop` and the like, which templates may not change
};

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Returns the argument at `index`, or the one of that name; null where neither is passed.
  const Value* find(std::size_t index, std::string_view name) const;
};

}  // namespace terrace::jinja

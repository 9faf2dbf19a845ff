#include "runtime/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/jinja/errors.h"

namespace terrace::jinja {
namespace {

// Returns a text that two keys share if they are the same key of a Python dict.
std::string key_text(const Value& key) {
  if (key.is_text()) return "t" + key.text();
  if (key.is_bool() || key.is_integer()) return fmt::format("n{}", key.integer());
  if (key.is_float()) {
    const double number = key.number();
    constexpr double kBeyond = 9223372036854775808.0;  // 2^63
    if (std::trunc(number) == number && number >= -kBeyond && number < kBeyond) {
      return fmt::format("n{}", static_cast<std::int64_t>(number));
    }
    return fmt::format("f{}", number);
  }
  if (key.is_markup()) return "t" + key.markup();
  if (key.is_none()) return "None";
  if (key.is_undefined()) return "Undefined";
  if (key.is_list() && key.list().is_tuple()) {
    std::string text = "(";
    for (const Value& item : key.items()) {
      const std::string part = key_text(item);
      text += fmt::format("{}:{}", part.size(), part);
    }
    return text;
  }
  const bool is_sequence =
      key.is_list() && (key.list().kind == List::Kind::kRange || key.list().is_view());
  if (is_sequence || key.is_iterator() || key.is_callable() || key.is_namespace()) {
    throw RenderError(fmt::format("a {} as a key is not supported", key.type_name()));
  }
  throw RenderError(fmt::format("a value of type {} cannot be a key", key.type_name()));
}

bool are_equal_lists(const List& a, const List& b) {
  if (&a == &b) return true;
  if (a.is_view() && a.kind == b.kind) {
    throw RenderError(
        "a comparison of the keys, values or items of mappings is not supported; "
        "put them through the filter list first");
  }
  if (a.is_view() || b.is_view()) return false;
  return (a.is_tuple() ? b.is_tuple() : a.kind == b.kind) && a.items == b.items;
}

}  // namespace

void Extent::add(const Extent& part) {
  constexpr std::uint64_t kWorkMax = std::uint64_t{1} << 24;
  constexpr std::uint32_t kLevelsMax = 500;
  work += part.work;
  levels = std::max(levels, part.levels + 1);
  has_names |= part.has_names;
  if (levels > kLevelsMax) {
    throw RenderError(fmt::format("lists and mappings are nested more than {} deep", kLevelsMax));
  }
  if (work > kWorkMax) {
    throw RenderError(
        fmt::format("a list or mapping has more than {} parts, with those in it", kWorkMax));
  }
}

Value::Value(std::string text) : content_(std::make_shared<const std::string>(std::move(text))) {}
Value::Value(List list) {
  list.extent = {};
  for (const Value& item : list.items) list.extent.add(item.extent());
  content_ = std::make_shared<const List>(std::move(list));
}
Value::Value(Mapping mapping) : content_(std::make_shared<const Mapping>(std::move(mapping))) {}
Value::Value(Undefined undefined)
    : content_(std::make_shared<const Undefined>(std::move(undefined))) {}
Value::Value(Callable callable) : content_(std::make_shared<const Callable>(std::move(callable))) {}

Value Value::list(std::vector<Value> items) {
  return sequence(std::move(items), List::Kind::kList);
}
Value Value::tuple(std::vector<Value> items) {
  return sequence(std::move(items), List::Kind::kTuple);
}
Value Value::sequence(std::vector<Value> items, List::Kind kind) {
  return Value(List{.items = std::move(items), .kind = kind});
}
Value Value::iterator(std::vector<Value> items) {
  Iterator iterator{.items = std::move(items), .extent = {}, .problem = {}};
  for (const Value& item : iterator.items) iterator.extent.add(item.extent());
  Value value;
  value.content_ = std::make_shared<Iterator>(std::move(iterator));
  return value;
}
Value Value::markup(std::string text) {
  Value value;
  value.content_ = std::make_shared<const Markup>(Markup{std::move(text)});
  return value;
}

std::int64_t Value::integer() const {
  return is_bool() ? std::int64_t{boolean()} : std::get<std::int64_t>(content_);
}

double Value::number() const {
  return is_float() ? std::get<double>(content_) : static_cast<double>(integer());
}

const std::string& Value::text() const {
  return *std::get<std::shared_ptr<const std::string>>(content_);
}
const Mapping& Value::mapping() const {
  return *std::get<std::shared_ptr<const Mapping>>(content_);
}
const Callable& Value::callable() const {
  return *std::get<std::shared_ptr<const Callable>>(content_);
}
const std::string& Value::undefined_what() const {
  return std::get<std::shared_ptr<const Undefined>>(content_)->what;
}
const std::string& Value::markup() const {
  return std::get<std::shared_ptr<const Markup>>(content_)->text;
}
Extent Value::extent() const {
  constexpr std::size_t kBytesOfWork = 16;
  if (is_text()) return {.work = text().size() / kBytesOfWork + 1};
  if (is_markup()) return {.work = markup().size() / kBytesOfWork + 1};
  if (is_list()) return list().extent;
  if (is_mapping()) return mapping().extent();
  if (is_iterator()) return iterator().extent;
  if (is_callable()) return callable().extent;
  return {.has_names = is_namespace()};
}
Namespace& Value::names() const { return *std::get<std::shared_ptr<Namespace>>(content_); }

const char* Value::type_name() const {
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_integer()) return "int";
  if (is_float()) return "float";
  if (is_text()) return "str";
  if (is_list()) {
    constexpr auto kNames = std::to_array<const char*>(
        {"list", "tuple", "tuple", "range", "dict_keys", "dict_values", "dict_items"});
    return kNames[static_cast<std::size_t>(list().kind)];
  }
  if (is_iterator()) return "generator";
  if (is_markup()) return "Markup";
  if (is_mapping()) return "dict";
  if (is_undefined()) return "Undefined";
  return is_callable() ? "function" : "Namespace";
}

bool Value::is_true() const {
  if (is_none() || is_undefined()) return false;
  if (is_number()) return number() != 0;
  if (is_text()) return !text().empty();
  if (is_markup()) return !markup().empty();
  if (is_list()) return !items().empty();
  if (is_mapping()) return !mapping().empty();
  return true;
}

std::partial_ordering order_of_numbers(const Value& a, const Value& b) {
  if (!a.is_float() && !b.is_float()) return a.integer() <=> b.integer();
  if (a.is_float() && b.is_float()) return a.number() <=> b.number();
  if (a.is_float()) return 0 <=> order_of_numbers(b, a);
  const double number = b.number();
  if (std::isnan(number)) return std::partial_ordering::unordered;
  constexpr double kBeyond = 9223372036854775808.0;  // 2^63
  if (number >= kBeyond) return std::partial_ordering::less;
  if (number < -kBeyond) return std::partial_ordering::greater;
  const auto whole = static_cast<std::int64_t>(number);
  if (a.integer() != whole) return a.integer() <=> whole;
  return 0.0 <=> number - std::trunc(number);
}

bool operator==(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return order_of_numbers(a, b) == 0;
  if (a.is_number() || b.is_number()) return false;
  if (a.is_markup() || b.is_markup()) {
    if (!(a.is_text() || a.is_markup()) || !(b.is_text() || b.is_markup())) return false;
    return (a.is_text() ? a.text() : a.markup()) == (b.is_text() ? b.text() : b.markup());
  }
  if (a.is_text()) return b.is_text() && a.text() == b.text();
  if (a.is_list()) return b.is_list() && are_equal_lists(a.list(), b.list());
  if (a.is_mapping()) {
    if (!b.is_mapping() || a.mapping().size() != b.mapping().size()) return false;
    return std::ranges::all_of(a.mapping().entries(), [&](const Mapping::Entry& entry) {
      const Value* const other = b.mapping().find(entry.first);
      return other != nullptr && entry.second == *other;
    });
  }
  if (a.is_none()) return b.is_none();
  if (a.is_undefined()) return b.is_undefined();
  if (a.is_callable()) return b.is_callable() && &a.callable() == &b.callable();
  if (a.is_iterator()) return b.is_iterator() && &a.iterator() == &b.iterator();
  return b.is_namespace() && &a.names() == &b.names();
}

bool Mapping::is_key(const Value& value) {
  if (value.is_list()) {
    return value.list().is_tuple() && std::ranges::all_of(value.items(), is_key);
  }
  return value.is_number() || value.is_text() || value.is_markup() || value.is_none() ||
         value.is_undefined();
}

void Mapping::set(const Value& key, Value value) {
  const auto [place, is_new] = places_.try_emplace(key_text(key), entries_.size());
  if (is_new) {
    entries_.emplace_back(key, Value());
    extent_.add(key.extent());
  }
  Value& held = entries_[place->second].second;
  extent_.work -= is_new ? 0 : held.extent().work;
  extent_.add(value.extent());
  held = std::move(value);
}

const Value* Mapping::find(const Value& key) const {
  const auto place = places_.find(key_text(key));
  return place == places_.end() ? nullptr : &entries_[place->second].second;
}

const Value* Mapping::find(std::string_view key) const {
  const auto place = places_.find("t" + std::string(key));
  return place == places_.end() ? nullptr : &entries_[place->second].second;
}

void Mapping::erase(std::string_view key) {
  const auto place = places_.find("t" + std::string(key));
  if (place == places_.end()) return;
  const std::size_t erased = place->second;
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(erased));
  places_.erase(place);
  for (auto& [text, index] : places_) index -= index > erased ? 1 : 0;
}

const Value* Arguments::find(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

}  // namespace terrace::jinja

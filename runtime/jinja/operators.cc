#include "runtime/jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <utility>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/methods.h"
#include "runtime/jinja/python_text.h"

namespace terrace::jinja {
namespace {

[[noreturn]] void refuse_operands(std::string_view symbol, const Value& left, const Value& right) {
  if (left.is_markup() || right.is_markup()) {
    throw RenderError(fmt::format("{} with a result of safe or escape is not supported", symbol));
  }
  throw RenderError(fmt::format("{} is not defined for values of types {} and {}", symbol,
                                left.type_name(), right.type_name()));
}

[[noreturn]] void refuse_large() { throw RenderError("a whole number does not fit in 64 bits"); }

std::int64_t floor_quotient(std::int64_t left, std::int64_t right) {
  const std::int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  for (std::int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) refuse_large();
    if (result == 0 || (result == 1 && base == 1)) break;
    if (base == -1 && i == 1) return exponent % 2 == 0 ? 1 : -1;
  }
  return result;
}

Value power_of_floats(double base, double exponent) {
  if (base == 0 && exponent < 0) throw RenderError("0 cannot have a negative exponent");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) &&
      std::trunc(exponent) != exponent) {
    throw RenderError("a broken power of a negative number, a complex number, is not supported");
  }
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) {
    throw RenderError("a power is too large");
  }
  return Value(result);
}

// Returns left // right or left % right, by the steps that Python takes.
Value divide_floats(bool is_quotient, double left, double right) {
  double rest = std::fmod(left, right);
  double quotient = (left - rest) / right;
  if (rest == 0) {
    rest = std::copysign(0.0, right);
  } else if ((rest < 0) != (right < 0)) {
    rest += right;
    quotient -= 1;
  }
  if (!is_quotient) return Value(rest);
  if (quotient == 0) return Value(std::copysign(0.0, left / right));
  const double whole = std::floor(quotient);
  constexpr double kHalf = 0.5;
  return Value(quotient - whole > kHalf ? whole + 1 : whole);
}

Value calculate_floats(char operation, double left, double right) {
  switch (operation) {
    case '+':
      return Value(left + right);
    case '-':
      return Value(left - right);
    case '*':
      return Value(left * right);
    case 'p':
      return power_of_floats(left, right);
    default:
      break;
  }
  if (right == 0) throw RenderError("division by zero");
  return operation == '/' ? Value(left / right) : divide_floats(operation == 'f', left, right);
}

Value calculate_integers(char operation, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  switch (operation) {
    case '+':
      if (__builtin_add_overflow(left, right, &result)) refuse_large();
      return Value(result);
    case '-':
      if (__builtin_sub_overflow(left, right, &result)) refuse_large();
      return Value(result);
    case '*':
      if (__builtin_mul_overflow(left, right, &result)) refuse_large();
      return Value(result);
    case 'p':
      if (right < 0) {
        return calculate_floats('p', static_cast<double>(left), static_cast<double>(right));
      }
      return Value(power(left, right));
    default:
      break;
  }
  if (right == 0) throw RenderError("division by zero");
  if (operation == '/') {
    constexpr std::int64_t kExactMax = std::int64_t{1} << 53;
    if (std::max(left, right) > kExactMax || std::min(left, right) < -kExactMax) {
      throw RenderError("a division of whole numbers beyond 2^53 is not supported");
    }
    return Value(static_cast<double>(left) / static_cast<double>(right));
  }
  if (left == INT64_MIN && right == -1) refuse_large();
  const std::int64_t quotient = floor_quotient(left, right);
  return Value(operation == 'f' ? quotient : left - quotient * right);
}

Value repeat(Context& context, const Value& sequence, std::int64_t times) {
  const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(times, 0));
  const std::uint64_t size =
      sequence.is_text() ? sequence.text().size() : sequence.items().size() * sizeof(Value);
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(size, count, &bytes)) bytes = UINT64_MAX;
  context.spend_text(bytes);
  if (sequence.is_text()) {
    std::string text;
    text.reserve(bytes);
    for (std::uint64_t i = 0; i < count; ++i) text += sequence.text();
    return Value(std::move(text));
  }
  List list{.items = {}, .kind = sequence.list().kind};
  for (std::uint64_t i = 0; i < count; ++i) {
    list.items.insert(list.items.end(), sequence.items().begin(), sequence.items().end());
  }
  return Value(std::move(list));
}

Value add_lists(Context& context, const Value& left, const Value& right) {
  List list = left.list();
  if (list.is_tuple()) list.kind = List::Kind::kTuple;
  context.spend_text((list.items.size() + right.items().size()) * sizeof(Value));
  list.items.insert(list.items.end(), right.items().begin(), right.items().end());
  return Value(std::move(list));
}

// Returns whether both are lists or both are tuples, which have an order and may be joined.
bool are_alike(const Value& left, const Value& right) {
  if (!left.is_list() || !right.is_list()) return false;
  const List& a = left.list();
  const List& b = right.list();
  if (a.is_tuple()) return b.is_tuple();
  return a.kind == List::Kind::kList && b.kind == List::Kind::kList;
}

template <typename T>
bool holds(std::string_view symbol, const T& order) {
  if (symbol == "<") return order < 0;
  if (symbol == "<=") return order <= 0;
  return symbol == ">" ? order > 0 : order >= 0;
}

// Compares by order: < <= > >=.
bool compare_order(Context& context, std::string_view symbol, const Value& left,
                   const Value& right) {
  if (left.is_number() && right.is_number()) {
    return holds(symbol, order_of_numbers(left, right));
  }
  if (left.is_text() && right.is_text()) return holds(symbol, left.text() <=> right.text());
  if (are_alike(left, right)) {
    const std::size_t common = std::min(left.items().size(), right.items().size());
    for (std::size_t i = 0; i < common; ++i) {
      context.spend(1);
      if (!(left.items()[i] == right.items()[i])) {
        return compare(context, symbol, left.items()[i], right.items()[i]);
      }
    }
    return holds(symbol, left.items().size() <=> right.items().size());
  }
  refuse_operands(symbol, left, right);
}

// Returns the place of an index in a sequence of `size`; nothing where it is outside.
std::optional<std::size_t> place_of(std::int64_t index, std::size_t size) {
  const std::int64_t from_front = index < 0 ? index + static_cast<std::int64_t>(size) : index;
  if (from_front < 0 || from_front >= static_cast<std::int64_t>(size)) return std::nullopt;
  return static_cast<std::size_t>(from_front);
}

Value undefined_item(const Value& value, const std::string& key) {
  if (value.is_undefined()) throw RenderError(value.undefined_what());
  return Value(Undefined{fmt::format("'{} object' has no attribute '{}'", value.type_name(), key)});
}

// Returns the places that a slice takes.
std::vector<std::size_t> places_of(const SliceBounds& bounds, std::size_t size) {
  const auto count = static_cast<std::int64_t>(size);
  const bool is_forward = bounds.step > 0;
  const auto clamp = [&](std::optional<std::int64_t> index, std::int64_t otherwise) {
    if (!index) return otherwise;
    const std::int64_t least = is_forward ? 0 : -1;
    return std::clamp(*index < 0 ? *index + count : *index, least, is_forward ? count : count - 1);
  };
  const std::int64_t begin = clamp(bounds.begin, is_forward ? 0 : count - 1);
  const std::int64_t end = clamp(bounds.end, is_forward ? count : -1);
  std::vector<std::size_t> places;
  for (std::int64_t i = begin; is_forward ? i < end : i > end;) {
    places.push_back(static_cast<std::size_t>(i));
    if (__builtin_add_overflow(i, bounds.step, &i)) break;
  }
  return places;
}

}  // namespace

void refuse_names(const Value& value) {
  if (value.extent().has_names) {
    throw RenderError("a namespace, loop or cycler in another one is not supported");
  }
}

void refuse_undefined(const Value& value) {
  if (value.is_undefined()) throw RenderError(value.undefined_what());
}

Value calculate(Context& context, char operation, const Value& left, const Value& right) {
  refuse_undefined(left);
  refuse_undefined(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float()) {
      return calculate_floats(operation, left.number(), right.number());
    }
    return calculate_integers(operation, left.integer(), right.integer());
  }
  if (operation == '+' && left.is_text() && right.is_text()) {
    context.spend_text(left.text().size() + right.text().size());
    return Value(left.text() + right.text());
  }
  if (operation == '+' && are_alike(left, right)) return add_lists(context, left, right);
  const auto is_sequence = [](const Value& value) {
    return value.is_text() || are_alike(value, value);
  };
  const auto is_count = [](const Value& value) { return value.is_number() && !value.is_float(); };
  if (operation == '*' && is_sequence(left) && is_count(right)) {
    return repeat(context, left, right.integer());
  }
  if (operation == '*' && is_count(left) && is_sequence(right)) {
    return repeat(context, right, left.integer());
  }
  if (operation == '%' && left.is_text()) {
    throw RenderError("formatting a text by % is not supported");
  }
  refuse_operands(operation == 'f'   ? "//"
                  : operation == 'p' ? "**"
                                     : std::string(1, operation),
                  left, right);
}

bool compare(Context& context, std::string_view symbol, const Value& left, const Value& right) {
  if (symbol == "in") return contains(context, right, left);
  if (symbol == "not in") return !contains(context, right, left);
  context.spend(std::min(left.extent().work, right.extent().work));
  if (symbol == "==") return left == right;
  if (symbol == "!=") return !(left == right);
  refuse_undefined(left);
  refuse_undefined(right);
  return compare_order(context, symbol, left, right);
}

bool contains(Context& context, const Value& container, const Value& item) {
  if (container.is_text()) {
    if (!item.is_text()) refuse_operands("in", item, container);
    context.spend_text(container.text().size());
    return find_in(container.text(), item.text()) != std::string::npos;
  }
  context.spend(item.extent().work);
  if (container.is_mapping()) return container.mapping().find(item) != nullptr;
  if (container.is_undefined()) return false;
  if (!container.is_list() && !container.is_iterator()) refuse_operands("in", item, container);
  if (container.is_list() && container.list().kind == List::Kind::kKeys && !Mapping::is_key(item)) {
    throw RenderError(fmt::format("a value of type {} cannot be a key", item.type_name()));
  }
  const std::vector<Value> items =
      container.is_iterator() ? items_held_of(context, container) : std::vector<Value>();
  return place_in(context, container.is_list() ? container.items() : items, item).has_value();
}

std::optional<std::size_t> place_in(Context& context, const std::vector<Value>& items,
                                    const Value& item) {
  const std::uint64_t work = item.extent().work;
  for (std::size_t i = 0; i < items.size(); ++i) {
    context.spend(std::min(work, items[i].extent().work));
    if (items[i] == item) return i;
  }
  return std::nullopt;
}

std::string text_of(Context& context, const Value& value) {
  context.spend(value.extent().work);
  return str(value);
}

std::vector<Value> items_held_of(Context& context, const Value& value) {
  std::vector<Value> items = items_of(context, value);
  if (value.is_iterator()) value.iterator().state = Iterator::State::kHeld;
  return items;
}

std::vector<Value> items_of(Context& context, const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_iterator()) {
    Iterator& iterator = value.iterator();
    if (iterator.state == Iterator::State::kHeld) {
      throw RenderError(
          "a second use of a result of map, select or the like is not supported; put it through "
          "the "
          "filter list first");
    }
    if (std::exchange(iterator.state, Iterator::State::kDone) == Iterator::State::kDone) return {};
    if (!iterator.problem.empty()) throw RenderError(iterator.problem);
    context.spend(iterator.items.size());
    return iterator.items;
  }
  if (value.is_list()) {
    context.spend(value.items().size());
    return value.items();
  }
  std::vector<Value> items;
  if (value.is_mapping()) {
    context.spend(value.mapping().size());
    for (const auto& [key, ignored] : value.mapping().entries()) items.push_back(key);
    return items;
  }
  if (!value.is_text()) {
    throw RenderError(fmt::format("a value of type {} cannot be looped over", value.type_name()));
  }
  context.spend(value.text().size());
  for (const std::string_view character : characters_of(value.text())) {
    items.emplace_back(std::string(character));
  }
  return items;
}

std::int64_t size_of(const Value& value) {
  if (value.is_text()) return static_cast<std::int64_t>(length_of(value.text()));
  if (value.is_list()) return static_cast<std::int64_t>(value.items().size());
  if (value.is_mapping()) return static_cast<std::int64_t>(value.mapping().size());
  if (value.is_undefined()) return 0;
  if (value.is_markup()) return static_cast<std::int64_t>(length_of(value.markup()));
  throw RenderError(fmt::format("a value of type {} has no length", value.type_name()));
}

Value attribute_of(const Value& value, const std::string& name) {
  if (value.is_list() && value.list().kind == List::Kind::kGroup) {
    if (name == "grouper") return value.items()[0];
    if (name == "list") return value.items()[1];
  }
  if (std::optional<Value> method = find_method(value, name)) return *std::move(method);
  if (value.is_mapping()) {
    if (const Value* const found = value.mapping().find(name)) return *found;
  }
  if (value.is_namespace()) {
    if (const Value* const found = value.names().values.find(name)) return *found;
  }
  return undefined_item(value, name);
}

Value item_of(Context& context, const Value& value, const Value& key) {
  if (value.is_mapping()) {
    context.spend(key.extent().work);
    const Value* const found = Mapping::is_key(key) ? value.mapping().find(key) : nullptr;
    if (found != nullptr) return *found;
  } else if (((value.is_list() && !value.list().is_view()) || value.is_text()) &&
             (key.is_integer() || key.is_bool())) {
    if (value.is_list()) {
      const auto place = place_of(key.integer(), value.items().size());
      if (place) return value.items()[*place];
    } else {
      context.spend_text(value.text().size());
      const std::vector<std::string_view> characters = characters_of(value.text());
      const auto place = place_of(key.integer(), characters.size());
      if (place) return Value(std::string(characters[*place]));
    }
  }
  if (key.is_text()) {
    if (value.is_namespace()) return attribute_of(value, key.text());
    if (std::optional<Value> method = find_method(value, key.text())) return *std::move(method);
  }
  return undefined_item(value, key.is_text() || key.is_number() ? str(key) : key.type_name());
}

Value follow_path(Context& context, const Value& value, const Value& path, const Value& otherwise) {
  const auto step = [&](const Value& from, const Value& key) {
    Value found = item_of(context, from, key);
    return found.is_undefined() && !otherwise.is_none() ? otherwise : found;
  };
  if (path.is_none()) return value;
  if (!path.is_text()) return step(value, path);
  Value found = value;
  const std::string& text = path.text();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    const std::string key = text.substr(begin, end - begin);
    const bool is_index = !key.empty() && key.size() < 10 &&
                          std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
    found = step(found, is_index ? Value(std::int64_t{std::stoi(key)}) : Value(key));
    begin = end + 1;
  }
  return found;
}

Value slice_of(Context& context, const Value& value, const SliceBounds& bounds) {
  refuse_undefined(value);
  if (bounds.step == 0) throw RenderError("the step of a slice is 0");
  if (value.is_list() && !value.list().is_view()) {
    context.spend(value.items().size());
    List list{.items = {}, .kind = value.list().kind};
    if (list.is_tuple()) list.kind = List::Kind::kTuple;
    for (const std::size_t i : places_of(bounds, value.items().size())) {
      list.items.push_back(value.items()[i]);
    }
    return Value(std::move(list));
  }
  if (!value.is_text()) {
    throw RenderError(fmt::format("a value of type {} cannot be sliced", value.type_name()));
  }
  context.spend_text(value.text().size());
  const std::vector<std::string_view> characters = characters_of(value.text());
  std::string text;
  for (const std::size_t i : places_of(bounds, characters.size())) text += characters[i];
  return Value(std::move(text));
}

Value call(Context& context, const Value& function, const Arguments& arguments) {
  refuse_undefined(function);
  if (!function.is_callable()) {
    throw RenderError(fmt::format("a value of type {} cannot be called", function.type_name()));
  }
  context.spend(1);
  return function.callable().call(context, arguments);
}

}  // namespace terrace::jinja

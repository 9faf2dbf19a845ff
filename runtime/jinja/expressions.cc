#include "runtime/jinja/expressions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/filters.h"
#include "runtime/jinja/operators.h"
#include "runtime/jinja/python_text.h"
#include "runtime/jinja/value_tests.h"

namespace terrace::jinja {

Arguments CallSyntax::evaluate(Context& context) const {
  Arguments arguments;
  for (const ExpressionPtr& each : positional) {
    arguments.positional.push_back(each->evaluate(context));
  }
  if (more_positional != nullptr) {
    for (Value& value : items_of(context, more_positional->evaluate(context))) {
      arguments.positional.push_back(std::move(value));
    }
  }
  for (const auto& [name, each] : named)
    arguments.named.emplace_back(name, each->evaluate(context));
  if (more_named != nullptr) {
    const Value values = more_named->evaluate(context);
    if (!values.is_mapping()) throw RenderError("** in a call needs a mapping");
    for (const auto& [key, value] : values.mapping().entries()) {
      if (!key.is_text()) throw RenderError("the keys of a mapping after ** are texts");
      if (arguments.find(SIZE_MAX, key.text()) != nullptr) {
        throw RenderError(fmt::format("the argument {} is passed twice", key.text()));
      }
      arguments.named.emplace_back(key.text(), value);
    }
  }
  return arguments;
}

Value ListDisplay::value(Context& context) const {
  List list{.items = {}, .kind = kind_};
  for (const ExpressionPtr& item : items_) list.items.push_back(item->evaluate(context));
  return Value(std::move(list));
}

Value MappingDisplay::value(Context& context) const {
  Mapping mapping;
  for (const auto& [key, value] : entries_) {
    const Value name = key->evaluate(context);
    mapping.set(name, value->evaluate(context));
  }
  return Value(std::move(mapping));
}

Value Attribute::value(Context& context) const {
  return attribute_of(object_->evaluate(context), name_);
}

Value Subscript::value(Context& context) const {
  const Value object = object_->evaluate(context);
  return item_of(context, object, key_->evaluate(context));
}

Value Slice::value(Context& context) const {
  const Value object = object_->evaluate(context);
  const auto bound = [&](const ExpressionPtr& expression) -> std::optional<std::int64_t> {
    if (expression == nullptr) return std::nullopt;
    const Value value = expression->evaluate(context);
    if (value.is_none()) return std::nullopt;
    refuse_undefined(value);
    if (!value.is_integer() && !value.is_bool()) {
      throw RenderError("a slice with bounds other than whole numbers is not supported");
    }
    return value.integer();
  };
  SliceBounds bounds;
  bounds.begin = bound(bounds_.begin);
  bounds.end = bound(bounds_.end);
  bounds.step = bound(bounds_.step).value_or(1);
  return slice_of(context, object, bounds);
}

Value Call::value(Context& context) const {
  const Value function = function_->evaluate(context);
  return call(context, function, arguments_.evaluate(context));
}

Value FilterCall::apply(Context& context, const Value& input) const {
  constexpr auto kForMarkup = std::to_array<std::string_view>(
      {"safe", "e", "escape", "string", "length", "count", "default", "d", "tojson"});
  if (input.is_markup() && std::ranges::find(kForMarkup, name_) == kForMarkup.end()) {
    throw RenderError(fmt::format("the filter {} after safe or escape is not supported", name_));
  }
  return find_filter(name_)(context, input, arguments_.evaluate(context));
}

Value FilterCall::value(Context& context) const {
  return apply(context, input_->evaluate(context));
}

Value TestCall::value(Context& context) const {
  const Value input = input_->evaluate(context);
  return Value(find_value_test(name_)(context, input, arguments_.evaluate(context)));
}

Value Unary::value(Context& context) const {
  const Value operand = operand_->evaluate(context);
  if (operation_ == UnaryOperator::kNot) return Value(!operand.is_true());
  const Value factor(std::int64_t{operation_ == UnaryOperator::kNegative ? -1 : 1});
  refuse_undefined(operand);
  if (!operand.is_number()) {
    throw RenderError(fmt::format("a value of type {} has no sign", operand.type_name()));
  }
  return calculate(context, '*', operand, factor);
}

Value Binary::value(Context& context) const {
  const Value left = left_->evaluate(context);
  const Value right = right_->evaluate(context);
  if (operation_ != '~') return calculate(context, operation_, left, right);
  std::string text = text_of(context, left);
  text += text_of(context, right);
  context.spend_text(text.size());
  return Value(std::move(text));
}

Value Logical::value(Context& context) const {
  Value left = left_->evaluate(context);
  if (left.is_true() != is_and_) return left;
  return right_->evaluate(context);
}

Value Comparison::value(Context& context) const {
  Value left = first_->evaluate(context);
  for (const auto& [symbol, expression] : steps_) {
    Value right = expression->evaluate(context);
    if (!compare(context, symbol, left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Choice::value(Context& context) const {
  if (condition_->evaluate(context).is_true()) return then_->evaluate(context);
  if (otherwise_ != nullptr) return otherwise_->evaluate(context);
  return Value(Undefined{"the inline if has no else, and its condition does not hold"});
}

}  // namespace terrace::jinja

#include "runtime/jinja/statements.h"

#include <fmt/format.h>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/operators.h"
#include "runtime/jinja/python_text.h"

namespace terrace::jinja {
namespace {

// Runs a block in a scope of its own, and returns what it prints.
std::string printed_by(const Block& block, Context& context) {
  context.begin_capture();
  run_block(block, context);
  return context.end_capture();
}

// The values that the variables `loop.changed` have been called with.
using ChangedValues = std::shared_ptr<std::optional<Value>>;

void refuse_named(const char* function, const Arguments& arguments) {
  if (arguments.named.empty()) return;
  throw RenderError(fmt::format("{} takes no arguments with names", function));
}

// Returns whether the values are others than before, and notes them.
bool note_change(Context& context, std::optional<Value>& before, Value now) {
  refuse_names(now);
  const bool is_other = !before || !compare(context, "==", *before, now);
  before = std::move(now);
  return is_other;
}

// Returns the variable `loop` for the item at `index`.
Value loop_variable(const std::vector<Value>& items, std::size_t index,
                    const ChangedValues& changed) {
  const auto number = [](std::size_t value) { return Value(static_cast<std::int64_t>(value)); };
  const std::size_t size = items.size();
  const auto names = std::make_shared<Namespace>(Namespace{.values = {}, .is_fixed = true});
  Mapping& loop = names->values;
  loop.set("index", number(index + 1));
  loop.set("index0", number(index));
  loop.set("revindex", number(size - index));
  loop.set("revindex0", number(size - index - 1));
  loop.set("first", Value(index == 0));
  loop.set("last", Value(index + 1 == size));
  loop.set("length", number(size));
  loop.set("depth", number(1));
  loop.set("depth0", number(0));
  loop.set("previtem",
           index > 0 ? items[index - 1] : Value(Undefined{"there is no previous item"}));
  loop.set("nextitem",
           index + 1 < size ? items[index + 1] : Value(Undefined{"there is no next item"}));
  loop.set("cycle",
           Value(Callable{.name = "cycle", .call = [index](Context&, const Arguments& arguments) {
                            refuse_named("cycle", arguments);
                            if (arguments.positional.empty()) {
                              throw RenderError("no items for cycling given");
                            }
                            return arguments.positional[index % arguments.positional.size()];
                          }}));
  loop.set("changed",
           Value(Callable{
               .name = "changed", .call = [changed](Context& context, const Arguments& arguments) {
                 refuse_named("changed", arguments);
                 return Value(note_change(context, *changed, Value::tuple(arguments.positional)));
               }}));
  return Value(names);
}

// Gives the parameters their values, in the current scope.
void bind_parameters(const MacroSyntax& macro, Context& context, const Arguments& arguments) {
  if (arguments.positional.size() > macro.parameters.size() && !macro.takes_more) {
    throw RenderError(fmt::format("the macro {} takes at most {} arguments", macro.name,
                                  macro.parameters.size()));
  }
  Mapping more_named;
  for (const auto& [name, value] : arguments.named) {
    if (name != "caller" || !macro.takes_caller) more_named.set(name, value);
  }
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const MacroSyntax::Parameter& parameter = macro.parameters[i];
    const bool has_place = i < arguments.positional.size();
    const Value* const passed = arguments.find(i, parameter.name);
    if (passed != nullptr) {
      context.scope()->set(parameter.name, *passed);
    } else if (parameter.otherwise != nullptr) {
      context.scope()->set(parameter.name, parameter.otherwise->evaluate(context));
    } else {
      context.scope()->set(
          parameter.name,
          Value(Undefined{fmt::format("parameter '{}' was not provided", parameter.name)}));
    }
    if (!has_place) more_named.erase(parameter.name);
  }
  if (!more_named.empty() && !macro.takes_more_named) {
    throw RenderError(fmt::format("the macro {} takes no argument {}", macro.name,
                                  str(more_named.entries().front().first)));
  }
  if (macro.takes_more_named) context.scope()->set("kwargs", Value(std::move(more_named)));
  if (macro.takes_more) {
    const std::size_t taken = std::min(arguments.positional.size(), macro.parameters.size());
    context.scope()->set(
        "varargs", Value::tuple({arguments.positional.begin() + static_cast<std::ptrdiff_t>(taken),
                                 arguments.positional.end()}));
  }
  if (macro.takes_caller) {
    const Value* const caller = arguments.find(SIZE_MAX, "caller");
    context.scope()->set("caller",
                         caller != nullptr ? *caller : Value(Undefined{"No caller defined"}));
  }
}

// Returns a function that runs the macro within the scope that it is defined in.
Value macro_function(const std::shared_ptr<const MacroSyntax>& macro,
                     const std::shared_ptr<Scope>& defined_in) {
  // Weak: the scope holds the macro, too.
  const std::weak_ptr<Scope> outer = defined_in;
  const auto run = [macro, outer](Context& context, const Arguments& arguments) {
    const Context::Level level(context);
    const std::shared_ptr<Scope> around = outer.lock();
    if (around == nullptr) {
      throw RenderError(fmt::format(
          "a call of the macro {} after the block that it is defined in is not supported",
          macro->name));
    }
    const InnerScope scope(context, around);
    bind_parameters(*macro, context, arguments);
    return Value(printed_by(macro->body, context));
  };
  return Value(Callable{.name = macro->name, .call = run});
}

}  // namespace

Flow run_block(const Block& block, Context& context) {
  for (const StatementPtr& statement : block) {
    const Flow flow = statement->run(context);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Flow PrintText::execute(Context& context) const {
  context.print(text_);
  return Flow::kNext;
}

Flow PrintValue::execute(Context& context) const {
  context.print(text_of(context, value_->evaluate(context)));
  return Flow::kNext;
}

void Target::assign(Context& context, const Value& value) const {
  if (parts.empty() && attribute.empty()) {
    context.scope()->set(name, value);
  } else if (parts.empty()) {
    const Value names = context.find(name);
    if (!names.is_namespace()) {
      throw RenderError(
          fmt::format("{}.{} is assigned to, but {} is no namespace", name, attribute, name));
    }
    if (names.names().is_fixed) {
      throw RenderError(fmt::format("{} is no namespace, and cannot be changed", name));
    }
    refuse_names(value);
    names.names().values.set(attribute, value);
  } else {
    const std::vector<Value> items = items_of(context, value);
    if (items.size() != parts.size()) {
      throw RenderError(
          fmt::format("{} values cannot be assigned to {} names", items.size(), parts.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].assign(context, items[i]);
  }
}

Flow Declaration::execute(Context& context) const {
  for (const std::string& name : names_) {
    context.scope()->set(name, Value(Undefined{fmt::format("'{}' is undefined", name)}));
  }
  return Flow::kNext;
}

Flow Assignment::execute(Context& context) const {
  target_.assign(context, value_->evaluate(context));
  return Flow::kNext;
}

Flow Capture::execute(Context& context) const {
  Value text;
  {
    const InnerScope scope(context);
    text = Value(printed_by(block_, context));
    for (const auto& filter : filters_) text = filter->apply(context, text);
  }
  if (target_) {
    target_->assign(context, text);
  } else {
    if (!text.is_text() && !text.is_markup()) {
      throw RenderError(fmt::format("the filters of a block return a value of type {}, not a text",
                                    text.type_name()));
    }
    context.print(text_of(context, text));
  }
  return Flow::kNext;
}

Flow Condition::execute(Context& context) const {
  for (const auto& [condition, block] : branches_) {
    if (condition == nullptr || condition->evaluate(context).is_true()) {
      return run_block(block, context);
    }
  }
  return Flow::kNext;
}

std::vector<Value> Loop::chosen_items(Context& context, const Value& over) const {
  std::vector<Value> items = items_held_of(context, over);
  if (parts_.condition == nullptr) return items;
  std::vector<Value> chosen;
  for (Value& item : items) {
    const InnerScope scope(context);
    parts_.target.assign(context, item);
    if (parts_.condition->evaluate(context).is_true()) chosen.push_back(std::move(item));
  }
  return chosen;
}

Flow Loop::execute(Context& context) const {
  const Value over = parts_.items->evaluate(context);
  const std::vector<Value> items = chosen_items(context, over);
  const auto changed = std::make_shared<std::optional<Value>>();
  bool has_completed = false;
  bool has_broken = false;
  for (std::size_t i = 0; i < items.size() && !has_broken; ++i) {
    const InnerScope scope(context);
    if (parts_.uses_loop) context.scope()->set("loop", loop_variable(items, i, changed));
    parts_.target.assign(context, items[i]);
    const Flow flow = run_block(parts_.body, context);
    // As in Jinja2, the other branch also runs where a jump has ended each run of the body.
    has_completed |= flow == Flow::kNext;
    has_broken = flow == Flow::kBreak;
  }
  if (over.is_iterator() && !has_broken) over.iterator().state = Iterator::State::kDone;
  if (has_completed || parts_.otherwise.empty()) return Flow::kNext;
  const InnerScope scope(context);
  return run_block(parts_.otherwise, context);
}

Flow MacroDefinition::execute(Context& context) const {
  context.scope()->set(macro_->name, macro_function(macro_, context.scope()));
  return Flow::kNext;
}

Flow CallBlock::execute(Context& context) const {
  const Value function = function_->evaluate(context);
  Arguments arguments = arguments_.evaluate(context);
  if (arguments.find(SIZE_MAX, "caller") != nullptr) {
    throw RenderError("the argument caller is passed twice");
  }
  arguments.named.emplace_back("caller", macro_function(caller_, context.scope()));
  context.print(text_of(context, call(context, function, arguments)));
  return Flow::kNext;
}

Flow Generation::execute(Context& context) const {
  std::string text;
  {
    // Jinja2 runs the block as a macro that nothing is passed to.
    const InnerScope scope(context);
    context.scope()->set("caller", Value(Undefined{"No caller defined"}));
    context.scope()->set("varargs", Value::tuple({}));
    context.scope()->set("kwargs", Value(Mapping()));
    text = printed_by(block_, context);
  }
  context.mark(text);
  context.print(text);
  return Flow::kNext;
}

Flow With::execute(Context& context) const {
  std::vector<Value> values;
  for (const auto& [target, value] : variables_) values.push_back(value->evaluate(context));
  const InnerScope scope(context);
  for (std::size_t i = 0; i < values.size(); ++i) variables_[i].first.assign(context, values[i]);
  return run_block(block_, context);
}

}  // namespace terrace::jinja

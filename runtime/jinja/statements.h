#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/jinja/expressions.h"

// The statements of a template. Each prints to the context, changes its variables, or throws a
// RenderError.
namespace terrace::jinja {

// Says where to go on after a statement: at the next one, or by a jump of the loop around it.
enum class Flow : std::uint8_t { kNext, kBreak, kContinue };

class Statement {
 public:
  virtual ~Statement() = default;

  Flow run(Context& context) const {
    const Context::Level level(context);
    return execute(context);
  }

 protected:
  virtual Flow execute(Context& context) const = 0;
};

using StatementPtr = std::unique_ptr<const Statement>;
using Block = std::vector<StatementPtr>;

// Runs the statements until one of them jumps.
Flow run_block(const Block& block, Context& context);

// Text outside of tags.
class PrintText final : public Statement {
 public:
  explicit PrintText(std::string text) : text_(std::move(text)) {}

 private:
  Flow execute(Context& context) const override;
  std::string text_;
};

// {{ value }}
class PrintValue final : public Statement {
 public:
  explicit PrintValue(ExpressionPtr value) : value_(std::move(value)) {}

 private:
  Flow execute(Context& context) const override;
  ExpressionPtr value_;
};

// The target of an assignment: a name, name.attribute of a namespace, or several of them in
// brackets.
struct Target {
  std::string name;       // empty where there are parts
  std::string attribute;  // empty: the name itself
  std::vector<Target> parts;

  void assign(Context& context, const Value& value) const;
};

// Makes variables undefined at the beginning of a block (NameFrames).
class Declaration final : public Statement {
 public:
  explicit Declaration(std::set<std::string> names) : names_(std::move(names)) {}

 private:
  Flow execute(Context& context) const override;
  std::set<std::string> names_;
};

// {% set target = value %}
class Assignment final : public Statement {
 public:
  Assignment(Target target, ExpressionPtr value)
      : target_(std::move(target)), value_(std::move(value)) {}

 private:
  Flow execute(Context& context) const override;
  Target target_;
  ExpressionPtr value_;
};

// {% set target %} ... {% endset %} and {% filter f %} ... {% endfilter %}: what the block prints
// goes through the filters, and becomes the target's value or is printed.
class Capture final : public Statement {
 public:
  using Filters = std::vector<std::unique_ptr<const FilterCall>>;
  Capture(std::optional<Target> target, Filters filters, Block block)
      : target_(std::move(target)), filters_(std::move(filters)), block_(std::move(block)) {}

 private:
  Flow execute(Context& context) const override;
  std::optional<Target> target_;
  Filters filters_;
  Block block_;
};

// {% if %}, {% elif %} and {% else %}, whose condition is null.
class Condition final : public Statement {
 public:
  using Branch = std::pair<ExpressionPtr, Block>;
  explicit Condition(std::vector<Branch> branches) : branches_(std::move(branches)) {}

 private:
  Flow execute(Context& context) const override;
  std::vector<Branch> branches_;
};

// {% for target in items if condition %} ... {% else %}
class Loop final : public Statement {
 public:
  struct Parts {
    Target target;
    ExpressionPtr items;
    ExpressionPtr condition;  // null: all items
    Block body;
    Block otherwise;         // run where there is no item
    bool uses_loop = false;  // the body names `loop`
  };
  explicit Loop(Parts parts) : parts_(std::move(parts)) {}

 private:
  Flow execute(Context& context) const override;
  std::vector<Value> chosen_items(Context& context, const Value& over) const;
  Parts parts_;
};

// {% break %} and {% continue %}
class Jump final : public Statement {
 public:
  explicit Jump(Flow flow) : flow_(flow) {}

 private:
  Flow execute(Context&) const override { return flow_; }
  Flow flow_;
};

// The parameters and the body of a macro, or of the block that {% call %} passes to one.
struct MacroSyntax {
  struct Parameter {
    std::string name;
    ExpressionPtr otherwise;  // its value where none is passed, or null
  };
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool takes_caller = false;      // the body names `caller`
  bool takes_more = false;        // the body names `varargs`
  bool takes_more_named = false;  // the body names `kwargs`
};

// {% macro name(parameters) %} ... {% endmacro %}
class MacroDefinition final : public Statement {
 public:
  explicit MacroDefinition(MacroSyntax macro)
      : macro_(std::make_shared<const MacroSyntax>(std::move(macro))) {}

 private:
  Flow execute(Context& context) const override;
  std::shared_ptr<const MacroSyntax> macro_;
};

// {% call(parameters) macro(arguments) %} ... {% endcall %}
class CallBlock final : public Statement {
 public:
  CallBlock(MacroSyntax caller, ExpressionPtr function, CallSyntax arguments)
      : caller_(std::make_shared<const MacroSyntax>(std::move(caller))),
        function_(std::move(function)),
        arguments_(std::move(arguments)) {}

 private:
  Flow execute(Context& context) const override;
  std::shared_ptr<const MacroSyntax> caller_;
  ExpressionPtr function_;
  CallSyntax arguments_;
};

// {% generation %} ... {% endgeneration %}: what the model generates, as transformers marks it.
class Generation final : public Statement {
 public:
  explicit Generation(Block block) : block_(std::move(block)) {}

 private:
  Flow execute(Context& context) const override;
  Block block_;
};

// {% with name = value %} ... {% endwith %}
class With final : public Statement {
 public:
  using Variable = std::pair<Target, ExpressionPtr>;
  With(std::vector<Variable> variables, Block block)
      : variables_(std::move(variables)), block_(std::move(block)) {}

 private:
  Flow execute(Context& context) const override;
  std::vector<Variable> variables_;
  Block block_;
};

}  // namespace terrace::jinja

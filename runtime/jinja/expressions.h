#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/jinja/context.h"
#include "runtime/jinja/value.h"

// The expressions of a template. Each evaluates to a value, or throws a RenderError.
namespace terrace::jinja {

class Expression {
 public:
  virtual ~Expression() = default;

  // Returns the value in the current scope.
  Value evaluate(Context& context) const {
    const Context::Level level(context);
    return value(context);
  }

 protected:
  virtual Value value(Context& context) const = 0;
};

using ExpressionPtr = std::unique_ptr<const Expression>;

// The arguments of a call, a filter or a test, as they are written.
struct CallSyntax {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  // *values, or null
  ExpressionPtr more_named;       // **values, or null

  Arguments evaluate(Context& context) const;
};

class Constant final : public Expression {
 public:
  explicit Constant(Value constant) : constant_(std::move(constant)) {}

 private:
  Value value(Context&) const override { return constant_; }
  Value constant_;
};

class Name final : public Expression {
 public:
  explicit Name(std::string name) : name_(std::move(name)) {}

 private:
  Value value(Context& context) const override { return context.find(name_); }
  std::string name_;
};

// [a, b] or (a, b).
class ListDisplay final : public Expression {
 public:
  ListDisplay(std::vector<ExpressionPtr> items, List::Kind kind)
      : items_(std::move(items)), kind_(kind) {}

 private:
  Value value(Context& context) const override;
  std::vector<ExpressionPtr> items_;
  List::Kind kind_;
};

// {a: b}.
class MappingDisplay final : public Expression {
 public:
  using Entry = std::pair<ExpressionPtr, ExpressionPtr>;
  explicit MappingDisplay(std::vector<Entry> entries) : entries_(std::move(entries)) {}

 private:
  Value value(Context& context) const override;
  std::vector<Entry> entries_;
};

// a.name
class Attribute final : public Expression {
 public:
  Attribute(ExpressionPtr object, std::string name)
      : object_(std::move(object)), name_(std::move(name)) {}

 private:
  Value value(Context& context) const override;
  ExpressionPtr object_;
  std::string name_;
};

// a[key]
class Subscript final : public Expression {
 public:
  Subscript(ExpressionPtr object, ExpressionPtr key)
      : object_(std::move(object)), key_(std::move(key)) {}

 private:
  Value value(Context& context) const override;
  ExpressionPtr object_;
  ExpressionPtr key_;
};

// a[begin:end:step]; each may be null.
class Slice final : public Expression {
 public:
  struct Bounds {
    ExpressionPtr begin;
    ExpressionPtr end;
    ExpressionPtr step;
  };
  Slice(ExpressionPtr object, Bounds bounds)
      : object_(std::move(object)), bounds_(std::move(bounds)) {}

 private:
  Value value(Context& context) const override;
  ExpressionPtr object_;
  Bounds bounds_;
};

class Call final : public Expression {
 public:
  Call(ExpressionPtr function, CallSyntax arguments)
      : function_(std::move(function)), arguments_(std::move(arguments)) {}

 private:
  Value value(Context& context) const override;
  ExpressionPtr function_;
  CallSyntax arguments_;
};

// a | name(arguments). The input is null in {% filter name %}, which passes it to apply().
class FilterCall final : public Expression {
 public:
  FilterCall(ExpressionPtr input, std::string name, CallSyntax arguments)
      : input_(std::move(input)), name_(std::move(name)), arguments_(std::move(arguments)) {}

  Value apply(Context& context, const Value& input) const;

 private:
  Value value(Context& context) const override;
  ExpressionPtr input_;
  std::string name_;
  CallSyntax arguments_;
};

// a is name(arguments)
class TestCall final : public Expression {
 public:
  TestCall(ExpressionPtr input, std::string name, CallSyntax arguments)
      : input_(std::move(input)), name_(std::move(name)), arguments_(std::move(arguments)) {}

 private:
  Value value(Context& context) const override;
  ExpressionPtr input_;
  std::string name_;
  CallSyntax arguments_;
};

enum class UnaryOperator : std::uint8_t { kNegative, kPositive, kNot };

class Unary final : public Expression {
 public:
  Unary(UnaryOperator operation, ExpressionPtr operand)
      : operation_(operation), operand_(std::move(operand)) {}

 private:
  Value value(Context& context) const override;
  UnaryOperator operation_;
  ExpressionPtr operand_;
};

// a + b and the like.
class Binary final : public Expression {
 public:
  Binary(char operation, ExpressionPtr left, ExpressionPtr right)
      : operation_(operation), left_(std::move(left)), right_(std::move(right)) {}

 private:
  Value value(Context& context) const override;
  char operation_;  // + - * / % ~, 'f' for //, 'p' for **
  ExpressionPtr left_;
  ExpressionPtr right_;
};

// `a and b`, `a or b`: the second is evaluated only if the first does not decide.
class Logical final : public Expression {
 public:
  Logical(bool is_and, ExpressionPtr left, ExpressionPtr right)
      : is_and_(is_and), left_(std::move(left)), right_(std::move(right)) {}

 private:
  Value value(Context& context) const override;
  bool is_and_;
  ExpressionPtr left_;
  ExpressionPtr right_;
};

// a < b <= c: holds where each neighbouring pair does.
class Comparison final : public Expression {
 public:
  using Step = std::pair<std::string, ExpressionPtr>;  // the operator and its right side
  Comparison(ExpressionPtr first, std::vector<Step> steps)
      : first_(std::move(first)), steps_(std::move(steps)) {}

 private:
  Value value(Context& context) const override;
  ExpressionPtr first_;
  std::vector<Step> steps_;
};

// a if condition else b; b may be null.
class Choice final : public Expression {
 public:
  Choice(ExpressionPtr condition, ExpressionPtr then, ExpressionPtr otherwise)
      : condition_(std::move(condition)),
        then_(std::move(then)),
        otherwise_(std::move(otherwise)) {}

 private:
  Value value(Context& context) const override;
  ExpressionPtr condition_;
  ExpressionPtr then_;
  ExpressionPtr otherwise_;
};

}  // namespace terrace::jinja

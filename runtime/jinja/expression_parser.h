#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/jinja/expressions.h"
#include "runtime/jinja/lexer.h"
#include "runtime/jinja/name_frames.h"

namespace terrace::jinja {

// The tokens of a template, read from front to back.
class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(std::size_t ahead = 0) const;
  Token take();
  bool is(Token::Kind kind) const { return peek().kind == kind; }
  bool is_operator(std::string_view symbol, std::size_t ahead = 0) const;
  bool is_name(std::string_view name) const;
  // Take the token if it is the one that is named; return whether it was.
  bool skip_operator(std::string_view symbol);
  bool skip_name(std::string_view name);
  // Take the token. Throw SyntaxError if it is another one.
  void expect_operator(std::string_view symbol);
  void expect_name(std::string_view name);
  void expect(Token::Kind kind, std::string_view what);
  std::string take_name();

  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

// Parses expressions by Jinja2's grammar: each function parses one level of precedence.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& tokens) : tokens_(tokens) {}

  // The blocks around the expression.
  NameFrames& frames() { return frames_; }

  // Parses an expression, with `a if b else c` only if asked to.
  ExpressionPtr parse(bool with_choice = true);
  // Parses one expression, or several with commas between them, which are a tuple.
  ExpressionPtr parse_tuple(bool with_choice = true);
  // Parses the arguments of a call, with their brackets.
  CallSyntax parse_arguments();
  // Parses a filter's name and arguments.
  std::unique_ptr<const FilterCall> parse_filter(ExpressionPtr input);
  // Parses what stands before the arguments of a call: a name or an attribute.
  ExpressionPtr parse_callee();

  // Returns the names that expressions have read since the last call.
  std::set<std::string> take_names() { return std::exchange(names_, {}); }
  const std::set<std::string>& names() const { return names_; }
  void add_name(const std::string& name) { names_.insert(name); }

 private:
  class Level;

  ExpressionPtr parse_choice();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_joined();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_text();
  ExpressionPtr parse_brackets();
  ExpressionPtr parse_list();
  ExpressionPtr parse_mapping();
  ExpressionPtr parse_suffixes(ExpressionPtr object);
  ExpressionPtr parse_filters(ExpressionPtr input);
  ExpressionPtr parse_attribute(ExpressionPtr object);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  ExpressionPtr parse_test(ExpressionPtr input);
  CallSyntax parse_test_arguments();
  bool begins_argument() const;
  bool ends_tuple() const;
  std::string parse_dotted_name();
  ExpressionPtr parse_binary(std::initializer_list<std::pair<std::string_view, char>> operators,
                             ExpressionPtr (ExpressionParser::*operand)());

  TokenReader& tokens_;
  int level_ = 0;
  std::set<std::string> names_;
  NameFrames frames_;
};

}  // namespace terrace::jinja

#include "runtime/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/filters.h"
#include "runtime/jinja/value_tests.h"

namespace terrace::jinja {

using Kind = Token::Kind;

const Token& TokenReader::peek(std::size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

Token TokenReader::take() {
  Token token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenReader::is_operator(std::string_view symbol, std::size_t ahead) const {
  return peek(ahead).kind == Kind::kOperator && peek(ahead).text == symbol;
}

bool TokenReader::is_name(std::string_view name) const {
  return is(Kind::kName) && peek().text == name;
}

bool TokenReader::skip_operator(std::string_view symbol) {
  const bool is_there = is_operator(symbol);
  if (is_there) take();
  return is_there;
}

bool TokenReader::skip_name(std::string_view name) {
  const bool is_there = is_name(name);
  if (is_there) take();
  return is_there;
}

void TokenReader::expect_operator(std::string_view symbol) {
  if (!skip_operator(symbol)) fail(fmt::format("'{}' is missing", symbol));
}

void TokenReader::expect_name(std::string_view name) {
  if (!skip_name(name)) fail(fmt::format("'{}' is missing", name));
}

void TokenReader::expect(Kind kind, std::string_view what) {
  if (!is(kind)) fail(fmt::format("{} is missing", what));
  take();
}

std::string TokenReader::take_name() {
  if (!is(Kind::kName)) fail("a name is missing");
  return take().text;
}

void TokenReader::fail(const std::string& what) const {
  const Token& token = peek();
  const bool has_text = !token.text.empty() && token.kind != Kind::kData;
  throw SyntaxError(has_text ? fmt::format("{} before '{}'", what, token.text) : what, token.line);
}

// Counts how deep expressions are nested, as long as it lives.
class ExpressionParser::Level {
 public:
  explicit Level(ExpressionParser& parser) : parser_(parser) {
    constexpr int kMost = 100;
    if (++parser_.level_ > kMost) {
      parser_.tokens_.fail(fmt::format("expressions are nested more than {} deep", kMost));
    }
  }
  ~Level() { --parser_.level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  ExpressionParser& parser_;
};

ExpressionPtr ExpressionParser::parse(bool with_choice) {
  return with_choice ? parse_choice() : parse_or();
}

ExpressionPtr ExpressionParser::parse_choice() {
  const Level level(*this);
  ExpressionPtr value = parse_or();
  while (tokens_.skip_name("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise = tokens_.skip_name("else") ? parse_choice() : nullptr;
    value = std::make_unique<Choice>(std::move(condition), std::move(value), std::move(otherwise));
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (tokens_.skip_name("or")) {
    left = std::make_unique<Logical>(false, std::move(left), parse_and());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (tokens_.skip_name("and")) {
    left = std::make_unique<Logical>(true, std::move(left), parse_not());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!tokens_.skip_name("not")) return parse_comparison();
  const Level level(*this);
  return std::make_unique<Unary>(UnaryOperator::kNot, parse_not());
}

ExpressionPtr ExpressionParser::parse_comparison() {
  ExpressionPtr first = parse_sum();
  std::vector<Comparison::Step> steps;
  while (true) {
    const Token& token = tokens_.peek();
    std::string symbol;
    for (const std::string_view each : {"==", "!=", "<", "<=", ">", ">="}) {
      if (tokens_.is_operator(each)) symbol = each;
    }
    const Token& next = tokens_.peek(1);
    if (tokens_.is_name("in")) {
      symbol = "in";
    } else if (tokens_.is_name("not") && next.kind == Kind::kName && next.text == "in") {
      symbol = "not in";
      tokens_.take();
    }
    if (symbol.empty() || token.kind == Kind::kEnd) break;
    tokens_.take();
    steps.emplace_back(symbol, parse_sum());
  }
  if (steps.empty()) return first;
  return std::make_unique<Comparison>(std::move(first), std::move(steps));
}

ExpressionPtr ExpressionParser::parse_binary(
    std::initializer_list<std::pair<std::string_view, char>> operators,
    ExpressionPtr (ExpressionParser::*operand)()) {
  ExpressionPtr left = (this->*operand)();
  while (true) {
    char operation = 0;
    for (const auto& [symbol, letter] : operators) {
      if (tokens_.is_operator(symbol)) operation = letter;
    }
    if (operation == 0) return left;
    tokens_.take();
    left = std::make_unique<Binary>(operation, std::move(left), (this->*operand)());
  }
}

ExpressionPtr ExpressionParser::parse_sum() {
  return parse_binary({{"+", '+'}, {"-", '-'}}, &ExpressionParser::parse_joined);
}

ExpressionPtr ExpressionParser::parse_joined() {
  return parse_binary({{"~", '~'}}, &ExpressionParser::parse_product);
}

ExpressionPtr ExpressionParser::parse_product() {
  return parse_binary({{"*", '*'}, {"/", '/'}, {"//", 'f'}, {"%", '%'}},
                      &ExpressionParser::parse_power);
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (tokens_.skip_operator("**")) {
    left = std::make_unique<Binary>('p', std::move(left), parse_unary(true));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  ExpressionPtr value;
  if (tokens_.skip_operator("-")) {
    const Level level(*this);
    value = std::make_unique<Unary>(UnaryOperator::kNegative, parse_unary(false));
  } else if (tokens_.skip_operator("+")) {
    const Level level(*this);
    value = std::make_unique<Unary>(UnaryOperator::kPositive, parse_unary(false));
  } else {
    value = parse_primary();
  }
  value = parse_suffixes(std::move(value));
  return with_filters ? parse_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  switch (tokens_.peek().kind) {
    case Kind::kName:
      return parse_name();
    case Kind::kText:
      return parse_text();
    case Kind::kInteger: {
      const Token token = tokens_.take();
      std::int64_t number = 0;
      const char* const end = token.text.data() + token.text.size();
      if (std::from_chars(token.text.data(), end, number).ec != std::errc()) {
        tokens_.fail("a whole number does not fit in 64 bits");
      }
      return std::make_unique<Constant>(Value(number));
    }
    case Kind::kFloat:
      return std::make_unique<Constant>(Value(std::strtod(tokens_.take().text.c_str(), nullptr)));
    default:
      break;
  }
  if (tokens_.is_operator("(")) return parse_brackets();
  if (tokens_.is_operator("[")) return parse_list();
  if (tokens_.is_operator("{")) return parse_mapping();
  tokens_.fail("an expression is missing");
}

ExpressionPtr ExpressionParser::parse_name() {
  std::string name = tokens_.take_name();
  if (name == "true" || name == "True") return std::make_unique<Constant>(Value(true));
  if (name == "false" || name == "False") return std::make_unique<Constant>(Value(false));
  if (name == "none" || name == "None") return std::make_unique<Constant>(Value());
  names_.insert(name);
  frames_.read(name);
  return std::make_unique<Name>(std::move(name));
}

ExpressionPtr ExpressionParser::parse_text() {
  std::string text;
  while (tokens_.is(Kind::kText)) text += tokens_.take().text;
  return std::make_unique<Constant>(Value(std::move(text)));
}

bool ExpressionParser::ends_tuple() const {
  const Kind kind = tokens_.peek().kind;
  return kind == Kind::kPrintEnd || kind == Kind::kBlockEnd || tokens_.is_operator(")");
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_choice) {
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (!ends_tuple()) {
    items.push_back(parse(with_choice));
    if (!tokens_.skip_operator(",")) break;
    is_tuple = true;
  }
  if (items.empty()) tokens_.fail("an expression is missing");
  if (!is_tuple) return std::move(items.front());
  return std::make_unique<ListDisplay>(std::move(items), List::Kind::kTuple);
}

ExpressionPtr ExpressionParser::parse_brackets() {
  tokens_.expect_operator("(");
  ExpressionPtr value;
  if (tokens_.is_operator(")")) {
    value = std::make_unique<Constant>(Value::tuple({}));
  } else {
    value = parse_tuple();
  }
  tokens_.expect_operator(")");
  return value;
}

ExpressionPtr ExpressionParser::parse_list() {
  tokens_.expect_operator("[");
  std::vector<ExpressionPtr> items;
  while (!tokens_.is_operator("]")) {
    items.push_back(parse());
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator("]");
  return std::make_unique<ListDisplay>(std::move(items), List::Kind::kList);
}

ExpressionPtr ExpressionParser::parse_mapping() {
  tokens_.expect_operator("{");
  std::vector<MappingDisplay::Entry> entries;
  while (!tokens_.is_operator("}")) {
    ExpressionPtr key = parse();
    tokens_.expect_operator(":");
    entries.emplace_back(std::move(key), parse());
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator("}");
  return std::make_unique<MappingDisplay>(std::move(entries));
}

ExpressionPtr ExpressionParser::parse_suffixes(ExpressionPtr object) {
  while (true) {
    if (tokens_.skip_operator(".")) {
      object = parse_attribute(std::move(object));
    } else if (tokens_.skip_operator("[")) {
      object = parse_subscript(std::move(object));
    } else if (tokens_.is_operator("(")) {
      object = std::make_unique<Call>(std::move(object), parse_arguments());
    } else {
      return object;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr input) {
  while (true) {
    if (tokens_.skip_operator("|")) {
      input = parse_filter(std::move(input));
    } else if (tokens_.skip_name("is")) {
      input = parse_test(std::move(input));
    } else if (tokens_.is_operator("(")) {
      input = std::make_unique<Call>(std::move(input), parse_arguments());
    } else {
      return input;
    }
  }
}

ExpressionPtr ExpressionParser::parse_callee() {
  ExpressionPtr object = parse_name();
  while (tokens_.skip_operator(".")) object = parse_attribute(std::move(object));
  return object;
}

ExpressionPtr ExpressionParser::parse_attribute(ExpressionPtr object) {
  if (!tokens_.is(Kind::kInteger)) {
    return std::make_unique<Attribute>(std::move(object), tokens_.take_name());
  }
  return std::make_unique<Subscript>(std::move(object), parse_primary());
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object) {
  Slice::Bounds bounds;
  const auto is_bound = [&] { return !tokens_.is_operator(":") && !tokens_.is_operator("]"); };
  if (is_bound()) bounds.begin = parse();
  if (!tokens_.skip_operator(":")) {
    if (bounds.begin == nullptr) tokens_.fail("a key is missing");
    if (tokens_.is_operator(",")) tokens_.fail("a key of several values is not supported");
    tokens_.expect_operator("]");
    return std::make_unique<Subscript>(std::move(object), std::move(bounds.begin));
  }
  if (is_bound()) bounds.end = parse();
  if (tokens_.skip_operator(":") && is_bound()) bounds.step = parse();
  tokens_.expect_operator("]");
  return std::make_unique<Slice>(std::move(object), std::move(bounds));
}

CallSyntax ExpressionParser::parse_arguments() {
  CallSyntax call;
  tokens_.expect_operator("(");
  while (!tokens_.is_operator(")")) {
    if (call.more_named != nullptr) tokens_.fail("an argument follows **");
    if (tokens_.skip_operator("*")) {
      if (call.more_positional != nullptr) tokens_.fail("a call has a second *");
      call.more_positional = parse();
    } else if (tokens_.skip_operator("**")) {
      call.more_named = parse();
    } else if (tokens_.is(Kind::kName) && tokens_.is_operator("=", 1)) {
      std::string name = tokens_.take_name();
      tokens_.expect_operator("=");
      const auto is_it = [&name](const auto& argument) { return argument.first == name; };
      if (std::ranges::any_of(call.named, is_it)) {
        tokens_.fail(fmt::format("the argument {} is passed twice", name));
      }
      call.named.emplace_back(std::move(name), parse());
    } else {
      if (!call.named.empty() || call.more_positional != nullptr)
        tokens_.fail("an argument without a name follows one with a name or *");
      call.positional.push_back(parse());
    }
    if (!tokens_.skip_operator(",")) break;
  }
  tokens_.expect_operator(")");
  return call;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = tokens_.take_name();
  while (tokens_.skip_operator(".")) name += "." + tokens_.take_name();
  return name;
}

std::unique_ptr<const FilterCall> ExpressionParser::parse_filter(ExpressionPtr input) {
  std::string name = parse_dotted_name();
  if (find_filter(name) == nullptr) {
    tokens_.fail(fmt::format("the filter {} is not {}", name,
                             is_missing_filter(name) ? "supported" : "known"));
  }
  CallSyntax arguments;
  if (tokens_.is_operator("(")) arguments = parse_arguments();
  return std::make_unique<FilterCall>(std::move(input), std::move(name), std::move(arguments));
}

// Returns whether an argument without brackets follows the name of a test.
bool ExpressionParser::begins_argument() const {
  const Token& token = tokens_.peek();
  if (token.kind == Kind::kName) {
    return token.text != "else" && token.text != "or" && token.text != "and";
  }
  return token.kind == Kind::kText || token.kind == Kind::kInteger || token.kind == Kind::kFloat ||
         tokens_.is_operator("[") || tokens_.is_operator("{");
}

CallSyntax ExpressionParser::parse_test_arguments() {
  if (tokens_.is_operator("(")) return parse_arguments();
  CallSyntax arguments;
  if (!begins_argument()) return arguments;
  if (tokens_.is_name("is")) tokens_.fail("tests cannot be chained with is");
  arguments.positional.push_back(parse_suffixes(parse_primary()));
  return arguments;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr input) {
  const bool is_negated = tokens_.skip_name("not");
  std::string name = parse_dotted_name();
  if (find_value_test(name) == nullptr) tokens_.fail(fmt::format("the test {} is not known", name));
  CallSyntax arguments = parse_test_arguments();
  ExpressionPtr test =
      std::make_unique<TestCall>(std::move(input), std::move(name), std::move(arguments));
  if (!is_negated) return test;
  return std::make_unique<Unary>(UnaryOperator::kNot, std::move(test));
}

}  // namespace terrace::jinja

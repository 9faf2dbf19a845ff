#include "tests/tidy/parameter_counts.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "tests/tidy/source_text.h"

namespace terrace::tidy {
namespace {

constexpr std::size_t kNowhere = std::string_view::npos;

// Words whose parentheses are not a parameter list, but which a list may still follow.
constexpr auto kNotNames = std::to_array<std::string_view>(
    {"alignas", "decltype", "noexcept", "explicit", "requires", "static_assert", "asm",
     "__attribute__", "__launch_bounds__", "__declspec", "sizeof", "defined"});

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Returns the word at the end of the text, or an empty text if it ends with something else.
std::string_view last_word(std::string_view text) {
  text = trim(text);
  std::size_t begin = text.size();
  while (begin > 0 && is_word(text[begin - 1])) --begin;
  return text.substr(begin);
}

// Returns the text without the template arguments of a specialisation at its end.
std::string_view without_arguments(std::string_view text) {
  text = trim(text);
  if (!text.ends_with('>')) return text;
  int depth = 0;
  for (std::size_t at = text.size(); at-- > 0;) {
    if (text[at] == '>') ++depth;
    if (text[at] == '<' && --depth == 0) return trim(text.substr(0, at));
  }
  return text;
}

bool is_macro(std::string_view word) {
  return std::ranges::none_of(
             word, [](char c) { return std::islower(static_cast<unsigned char>(c)) != 0; }) &&
         word.size() > 1;
}

// Returns where the bracket that opens at `open` closes. Looks at one kind of bracket only.
std::size_t closing(std::string_view code, std::size_t open) {
  constexpr std::string_view kOpen = "([{";
  constexpr std::string_view kClose = ")]}";
  const char begin = code[open];
  const char end = kClose[kOpen.find(begin)];
  int depth = 0;
  for (std::size_t at = open; at < code.size(); ++at) {
    if (code[at] == begin) ++depth;
    if (code[at] == end && --depth == 0) return at;
  }
  return code.size();
}

// Returns the number of angle brackets of templates that a character opens or, if negative, closes.
// Shifts, arrows and comparisons with an equals sign do not count.
int angle_step(std::string_view code, std::size_t at) {
  const auto is_at = [&](std::size_t where, char c) {
    return where < code.size() && code[where] == c;
  };
  if (code[at] == '<') {
    const bool shifts = is_at(at + 1, '<') || (at > 0 && code[at - 1] == '<');
    return shifts || is_at(at + 1, '=') ? 0 : 1;
  }
  if (code[at] != '>') return 0;
  return at > 0 && code[at - 1] == '-' ? 0 : -1;
}

// Returns where the template bracket that opens at `open` closes.
std::size_t closing_angle(std::string_view code, std::size_t open) {
  int depth = 0;
  for (std::size_t at = open; at < code.size(); ++at) {
    if (code[at] == '(' || code[at] == '{') at = closing(code, at);
    if (at >= code.size()) break;
    depth += angle_step(code, at);
    if (depth == 0) return at;
  }
  return code.size();
}

// Counts the parameters in the text between a pair of parentheses.
int count_parameters(std::string_view list) {
  if (trim(list).empty() || trim(list) == "void") return 0;
  int parameters = 1;
  int angles = 0;
  for (std::size_t at = 0; at < list.size(); ++at) {
    const char c = list[at];
    if (c == '(' || c == '[' || c == '{') at = closing(list, at);
    if (at >= list.size()) break;
    angles = std::max(0, angles + angle_step(list, at));
    if (c == ',' && angles == 0) ++parameters;
  }
  return parameters;
}

// Returns the text without the template<...> in front.
std::string_view without_template(std::string_view text) {
  text = trim(text);
  while (text.starts_with("template")) {
    const std::size_t open = text.find('<');
    if (open == kNowhere) break;
    const std::size_t end = closing_angle(text, open);
    text = end < text.size() ? trim(text.substr(end + 1)) : std::string_view{};
  }
  return text;
}

// Returns the statement up to the name of an operator, whose signs are not brackets or assignments.
std::string_view before_operator(std::string_view text) {
  for (std::size_t at = text.find("operator"); at != kNowhere; at = text.find("operator", at + 1)) {
    const bool ends = at + 8 == text.size() || !is_word(text[at + 8]);
    if (ends && (at == 0 || !is_word(text[at - 1]))) return text.substr(0, at);
  }
  return text;
}

bool is_inside_template(std::string_view text) {
  int angles = 0;
  for (std::size_t at = 0; at < text.size(); ++at) angles += angle_step(text, at);
  return angles > 0;
}

bool opens_scope(std::string_view statement) {
  const std::string_view text = without_template(statement);
  if (has_word(text, "enum")) return false;
  constexpr std::array<std::string_view, 5> kScopes = {"namespace", "class", "struct", "union",
                                                       "extern"};
  return std::ranges::any_of(kScopes, [&](std::string_view word) { return has_word(text, word); });
}

// Returns whether this is "*name" or "Type::*name" of a pointer to a function, or "&name" of a
// reference to an array.
bool is_declarator(std::string_view inside) {
  inside = trim(inside);
  std::size_t at = 0;
  while (at < inside.size() && (is_word(inside[at]) || inside[at] == ':')) ++at;
  const bool has_class = at >= 2 && inside.substr(0, at).ends_with("::");
  if (at < inside.size() && inside[at] == '*') return at == 0 || has_class;
  return inside.starts_with('&');
}

// Walks over namespaces, classes and the insides of functions.
class Declarations {
 public:
  explicit Declarations(std::string_view code) : code_(code) {}

  std::vector<ParameterList> run() {
    inside_.push_back(true);
    for (at_ = 0; at_ < code_.size(); ++at_) {
      const char c = code_[at_];
      if (c == '(' && inside_.back()) parenthesis();
      if (at_ >= code_.size()) break;
      if (c == '{') open();
      if (c == '}') close();
      if (c == ';') begin_statement();
    }
    return std::move(found_);
  }

 private:
  std::string_view statement() const { return code_.substr(begin_, at_ - begin_); }

  void begin_statement() {
    begin_ = at_ + 1;
    is_function_ = false;
    is_other_ = false;
  }

  // Reads a parenthesis. At its end at_ is where the parenthesis closes.
  void parenthesis() {
    const std::string_view text = without_template(statement());
    const std::size_t end = closing(code_, at_);
    const std::string_view inside = code_.substr(at_ + 1, std::max(end, at_ + 1) - at_ - 1);
    const std::string_view type = before_operator(text);
    const bool is_operator = type.size() < text.size();
    const std::string_view name = last_word(is_operator ? text : without_arguments(text));
    const bool is_bare_macro = is_macro(name) && name == text;  // TEST(Suite, Name)
    const bool is_list = !is_function_ && !is_other_ && !is_bare_macro && name != "operator" &&
                         std::ranges::find(kNotNames, name) == kNotNames.end() &&
                         !is_inside_template(before_operator(statement())) && !has_assignment(type);
    if (is_bare_macro && next_after(end) == '{') is_function_ = true;
    if (is_list && is_declarator(inside)) is_other_ = true;
    if (is_list && !is_other_ && !text.empty()) {
      found_.push_back(
          {line(), std::string(is_operator ? "operator" : name), count_parameters(inside)});
      is_function_ = true;
    }
    at_ = end;
  }

  char next_after(std::size_t at) const {
    const std::size_t next = code_.find_first_not_of(" \t\n", std::min(at + 1, code_.size()));
    return next < code_.size() ? code_[next] : '\0';
  }

  static bool has_assignment(std::string_view text) {
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '(') at = closing(text, at);
      if (at < text.size() && text[at] == '=') return true;
    }
    return false;
  }

  int line() const { return 1 + static_cast<int>(std::ranges::count(code_.substr(0, at_), '\n')); }

  void open() {
    const bool is_scope = !is_function_ && opens_scope(statement()) &&
                          (inside_.back() || statement().find('(') == kNowhere);
    inside_.push_back(is_scope);
    functions_.push_back(is_function_);
    begins_.push_back(begin_);
    begin_statement();
  }

  void close() {
    if (functions_.empty()) return;
    const bool was_scope = inside_.back();
    const bool was_function = functions_.back();
    const std::size_t begin = begins_.back();
    inside_.pop_back();
    functions_.pop_back();
    begins_.pop_back();
    begin_statement();
    if (was_scope || !inside_.back()) return;
    // If a constructor initialises a member with braces, the next member or the body follows.
    const char follows = next_after(at_);
    const bool continues = was_function ? follows == ',' || follows == '{' : follows != '}';
    if (!continues) return;
    begin_ = begin;
    is_function_ = was_function;
    is_other_ = !was_function;  // the rest of a variable with its value
  }

  std::string_view code_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;     // of the statement
  bool is_function_ = false;  // its parameters have been found
  bool is_other_ = false;     // it has none
  std::vector<bool> inside_;  // of each open brace: a namespace's or a class's
  std::vector<bool> functions_;
  std::vector<std::size_t> begins_;
  std::vector<ParameterList> found_;
};

// Returns whether the brackets that close at `close` are a lambda's captures, and not those around
// an index or an attribute.
bool are_captures(std::string_view code, std::size_t close) {
  int depth = 0;
  std::size_t open = close + 1;
  while (open > 0) {
    --open;
    if (code[open] == ']') ++depth;
    if (code[open] == '[' && --depth == 0) break;
  }
  const std::string_view before = trim(code.substr(0, open));
  if (before.empty()) return false;
  const std::string_view word = last_word(before);
  if (!word.empty()) return word == "return" || word == "co_return";
  return before.back() != ')' && before.back() != ']' && before.back() != '[';
}

std::vector<ParameterList> lambdas(std::string_view code) {
  std::vector<ParameterList> found;
  int line = 1;
  for (std::size_t at = 0; at < code.size(); ++at) {
    if (code[at] == '\n') ++line;
    if (code[at] != ']') continue;
    std::size_t next = std::min(code.find_first_not_of(" \t\n", at + 1), code.size());
    if (next < code.size() && code[next] == '<') next = closing_angle(code, next) + 1;
    if (next >= code.size() || code[next] != '(' || !are_captures(code, at)) continue;
    const std::size_t end = closing(code, next);
    found.push_back({line, "lambda", count_parameters(code.substr(next + 1, end - next - 1))});
  }
  return found;
}

}  // namespace

std::vector<ParameterList> parameter_lists(std::string_view text) {
  const std::string code = blank_directives(blank_comments_and_literals(text));
  std::vector<ParameterList> found = lambdas(code);
  for (ParameterList& list : Declarations(code).run()) found.push_back(std::move(list));
  return found;
}

}  // namespace terrace::tidy

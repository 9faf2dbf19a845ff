#include "tests/tidy/function_lengths.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "tests/tidy/source_text.h"

namespace terrace::tidy {
namespace {

enum class Block { kScope, kFunction, kOther };

// Returns the text without the template<...> and access labels that may stand before a declaration.
std::string_view declaration_core(std::string_view text) {
  text = trim(text);
  for (const std::string_view label : {"public:", "private:", "protected:"}) {
    if (text.starts_with(label)) return declaration_core(text.substr(label.size()));
  }
  if (!text.starts_with("template")) return text;
  std::size_t at = text.find('<');
  int depth = 0;
  for (; at < text.size(); ++at) {
    if (text[at] == '<') ++depth;
    if (text[at] == '>' && text[at - 1] != '-' && --depth == 0) break;
  }
  return at < text.size() ? declaration_core(text.substr(at + 1)) : text;
}

// Returns whether the text has an assignment outside of parentheses that is not the name of an
// operator.
bool is_assignment(std::string_view text) {
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text.substr(at).starts_with("operator")) {
      at = std::min(text.find('(', at), text.size());
      if (at == text.size()) return false;
    }
    if (text[at] == '(') ++depth;
    if (text[at] == ')') --depth;
    if (text[at] == '=' && depth == 0) return true;
  }
  return false;
}

// Returns the kind of block that a brace opens, from the text between it and the last ; { or }
// before it.
Block classify(std::string_view before) {
  const std::string_view text = declaration_core(before);
  if (text.find("](") != std::string_view::npos) return Block::kFunction;
  const bool call = text.find('(') != std::string_view::npos;
  if (call && is_assignment(text)) return Block::kOther;
  constexpr std::array<std::string_view, 6> kScopes = {"namespace", "class", "struct",
                                                       "union",     "enum",  "extern"};
  const bool scope = std::any_of(kScopes.begin(), kScopes.end(),
                                 [&](std::string_view word) { return has_word(text, word); });
  // "struct X f() {" is a function; "class alignas(64) X {" ends with a name and is not one.
  const bool ends_as_function = text.ends_with(')') || text.find(") ") != std::string_view::npos;
  const bool aligned =
      has_word(text, "alignas") || text.find("__attribute__") != std::string_view::npos;
  if (scope && (!call || aligned || !ends_as_function)) return Block::kScope;
  return call ? Block::kFunction : Block::kOther;
}

class Scanner {
 public:
  explicit Scanner(std::string_view code) : code_(code) {}

  std::vector<FunctionExtent> run() {
    for (at_ = 0; at_ < code_.size(); ++at_) {
      const char c = code_[at_];
      if (c == '\n') ++line_;
      if (c == '{') open();
      if (c == '}') close();
      if (c == ';' && inside_.empty()) begin_statement();
    }
    return std::move(found_);
  }

 private:
  // Begins a statement: the text from statement_ on stands before the next brace at this level.
  void begin_statement() {
    statement_ = at_ + 1;
    first_line_ = 0;
  }

  int line_of(std::size_t position) const {
    const auto begin = code_.begin();
    return 1 +
           static_cast<int>(std::count(begin, begin + static_cast<std::ptrdiff_t>(position), '\n'));
  }

  int first_line() const {
    std::size_t at = std::min(code_.find_first_not_of(" \t\n", statement_), code_.size());
    const std::string_view core = declaration_core(code_.substr(at));
    const bool label = code_.substr(at).starts_with("p") && core.data() != code_.data() + at &&
                       code_.substr(at).find(':') < 10;
    if (label) at = static_cast<std::size_t>(core.data() - code_.data());
    return line_of(at);
  }

  void open() {
    if (!inside_.empty()) {
      inside_.push_back(Block::kOther);
      return;
    }
    const std::string_view before = code_.substr(statement_, at_ - statement_);
    const Block block = classify(before);
    if (block == Block::kScope) {
      begin_statement();
      return;
    }
    inside_.push_back(block);
    if (first_line_ == 0) first_line_ = first_line();
  }

  void close() {
    if (inside_.empty()) {  // of a scope
      begin_statement();
      return;
    }
    const Block block = inside_.back();
    inside_.pop_back();
    if (!inside_.empty()) return;
    // A member initialised with braces is followed by the next one or by the body.
    const std::size_t next = code_.find_first_not_of(" \t\n", at_ + 1);
    const char follows = next < code_.size() ? code_[next] : '\0';
    if (block == Block::kFunction && (follows == ',' || follows == '{')) return;
    if (block == Block::kFunction) found_.push_back({first_line_, line_});
    if (block == Block::kFunction) begin_statement();
  }

  std::string_view code_;
  std::size_t at_ = 0;
  std::size_t statement_ = 0;
  int line_ = 1;
  int first_line_ = 0;         // of the declaration that is open, 0 before its first brace
  std::vector<Block> inside_;  // braces that are open inside a function or an initialiser
  std::vector<FunctionExtent> found_;
};

}  // namespace

std::vector<FunctionExtent> function_extents(std::string_view text) {
  const std::string code = blank_directives(blank_comments_and_literals(text));
  return Scanner(code).run();
}

}  // namespace terrace::tidy

#include "runtime/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "runtime/jinja/errors.h"
#include "runtime/jinja/expression_parser.h"
#include "runtime/jinja/lexer.h"

namespace terrace::jinja {
namespace {

using Kind = Token::Kind;
using Ends = std::initializer_list<std::string_view>;

constexpr std::size_t kSourceBytesMax = std::size_t{1} << 20;
constexpr int kBlockLevelsMax = 60;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(cut_tokens(source)), expressions_(tokens_) {}

  ParsedTemplate parse() {
    ParsedTemplate parsed;
    expressions_.frames().enter();
    parsed.body = parse_block({});
    declare(parsed.body);
    parsed.has_generation = has_generation_;
    return parsed;
  }

 private:
  // Parses statements up to a tag of one of these names, whose name is not taken, or up to the end
  // of the template if there are none.
  Block parse_block(Ends ends) {
    if (++level_ > kBlockLevelsMax) {
      tokens_.fail(fmt::format("blocks are nested more than {} deep", kBlockLevelsMax));
    }
    Block block;
    while (!tokens_.is(Kind::kEnd)) {
      if (tokens_.is(Kind::kData)) {
        block.push_back(std::make_unique<PrintText>(tokens_.take().text));
      } else if (tokens_.is(Kind::kPrintBegin)) {
        tokens_.take();
        block.push_back(std::make_unique<PrintValue>(expressions_.parse_tuple()));
        tokens_.expect(Kind::kPrintEnd, "}}");
      } else {
        tokens_.expect(Kind::kBlockBegin, "{%");
        if (std::ranges::any_of(ends, [&](std::string_view end) { return tokens_.is_name(end); })) {
          --level_;
          return block;
        }
        block.push_back(parse_statement());
      }
    }
    if (ends.size() > 0)
      tokens_.fail(fmt::format("{{% {} %}} is missing", fmt::join(ends, " or ")));
    --level_;
    return block;
  }

  // Leaves the block, whose variables that are undefined at first it declares.
  void declare(Block& block) {
    std::set<std::string> names = expressions_.frames().leave();
    if (names.empty()) return;
    block.insert(block.begin(), std::make_unique<Declaration>(std::move(names)));
  }

  // Notes that the target is assigned to.
  void assign(const Target& target) {
    for (const Target& part : target.parts) assign(part);
    if (!target.parts.empty()) return;
    if (target.attribute.empty()) {
      expressions_.frames().assign(target.name);
    } else {
      expressions_.frames().read(target.name);
    }
  }

  static void add_names(const Target& target, std::set<std::string>& names) {
    for (const Target& part : target.parts) add_names(part, names);
    if (target.parts.empty()) names.insert(target.name);
  }

  StatementPtr parse_statement() {
    const std::string tag = tokens_.take_name();
    if (tag == "for") return parse_for();
    if (tag == "if") return parse_if();
    if (tag == "set") return parse_set();
    if (tag == "macro") return parse_macro();
    if (tag == "call") return parse_call();
    if (tag == "filter") return parse_filter_block();
    if (tag == "generation") return parse_generation();
    if (tag == "with") return parse_with();
    if (tag == "break" || tag == "continue") return parse_jump(tag);
    static const std::set<std::string> kMissing = {"autoescape", "block",  "extends",
                                                   "from",       "import", "include"};
    tokens_.fail(
        fmt::format("the tag {} is not {}", tag, kMissing.contains(tag) ? "supported" : "known"));
  }

  void end_tag() { tokens_.expect(Kind::kBlockEnd, "%}"); }
  // Parses the body of a block, and its end.
  Block parse_body(std::string_view end) {
    end_tag();
    Block block = parse_block({end});
    tokens_.take();
    end_tag();
    return block;
  }

  // Parses the body of a loop or of a macro, and returns the names that it reads.
  template <typename Parse>
  std::set<std::string> names_read_by(const Parse& parse) {
    std::set<std::string> before = expressions_.take_names();
    parse();
    std::set<std::string> inside = expressions_.names();
    for (const std::string& name : before) expressions_.add_name(name);
    return inside;
  }

  StatementPtr parse_jump(const std::string& tag) {
    if (loops_ == 0) {
      tokens_.fail(
          fmt::format("{} outside of a loop, or out of a block that keeps its text, is not "
                      "supported",
                      tag));
    }
    end_tag();
    return std::make_unique<Jump>(tag == "break" ? Flow::kBreak : Flow::kContinue);
  }

  StatementPtr parse_if() {
    std::vector<Condition::Branch> branches;
    std::string tag = "if";
    while (tag != "endif") {
      ExpressionPtr condition = tag == "else" ? nullptr : expressions_.parse_tuple(false);
      end_tag();
      const bool is_last = tag == "else";
      expressions_.frames().enter_branch();
      Block block = is_last ? parse_block({"endif"}) : parse_block({"elif", "else", "endif"});
      expressions_.frames().leave_branch();
      branches.emplace_back(std::move(condition), std::move(block));
      tag = tokens_.take_name();
    }
    end_tag();
    return std::make_unique<Condition>(std::move(branches));
  }

  Target parse_single_target(bool with_attribute) {
    if (tokens_.skip_operator("(")) {
      Target target = parse_target(false);
      tokens_.expect_operator(")");
      return target;
    }
    Target target;
    target.name = tokens_.take_name();
    static const std::set<std::string> kReserved = {"true", "false", "none",
                                                    "True", "False", "None"};
    if (target.name == "loop") tokens_.fail("an assignment to loop is not supported");
    if (kReserved.contains(target.name)) {
      tokens_.fail(fmt::format("{} cannot be assigned to", target.name));
    }
    if (with_attribute && tokens_.skip_operator(".")) target.attribute = tokens_.take_name();
    return target;
  }

  // Parses one target, or several with commas between them.
  Target parse_target(bool with_attribute) {
    Target first = parse_single_target(with_attribute);
    if (!tokens_.is_operator(",")) return first;
    Target several;
    several.parts.push_back(std::move(first));
    while (tokens_.skip_operator(",")) {
      if (!tokens_.is(Kind::kName) && !tokens_.is_operator("(")) break;
      several.parts.push_back(parse_single_target(with_attribute));
    }
    return several;
  }

  StatementPtr parse_for() {
    Loop::Parts parts;
    parts.target = parse_target(false);
    tokens_.expect_name("in");
    parts.items = expressions_.parse_tuple(false);
    std::set<std::string> variables;
    add_names(parts.target, variables);
    if (tokens_.skip_name("if")) {
      expressions_.frames().enter(variables);
      parts.condition = expressions_.parse();
      expressions_.frames().leave();
    }
    if (tokens_.is_name("recursive")) tokens_.fail("recursive loops are not supported");
    end_tag();
    ++loops_;
    variables.insert("loop");
    expressions_.frames().enter(std::move(variables));
    const std::set<std::string> names =
        names_read_by([&] { parts.body = parse_block({"else", "endfor"}); });
    declare(parts.body);
    --loops_;
    parts.uses_loop = names.contains("loop");
    if (tokens_.take_name() == "else") {
      end_tag();
      expressions_.frames().enter();
      parts.otherwise = parse_block({"endfor"});
      declare(parts.otherwise);
      tokens_.take();
    }
    end_tag();
    return std::make_unique<Loop>(std::move(parts));
  }

  Capture::Filters parse_filters() {
    Capture::Filters filters;
    while (tokens_.skip_operator("|")) filters.push_back(expressions_.parse_filter(nullptr));
    return filters;
  }

  // Parses a block that is not a part of the loop around it, so that no jump leads out of it.
  Block parse_closed_body(std::string_view end, std::set<std::string> parameters = {}) {
    const int loops = std::exchange(loops_, 0);
    expressions_.frames().enter(std::move(parameters));
    Block block = parse_body(end);
    declare(block);
    loops_ = loops;
    return block;
  }

  StatementPtr parse_set() {
    Target target = parse_target(true);
    if (tokens_.skip_operator("=")) {
      ExpressionPtr value = expressions_.parse_tuple();
      assign(target);
      end_tag();
      return std::make_unique<Assignment>(std::move(target), std::move(value));
    }
    Capture::Filters filters = parse_filters();
    assign(target);
    Block block = parse_closed_body("endset");
    return std::make_unique<Capture>(std::move(target), std::move(filters), std::move(block));
  }

  StatementPtr parse_filter_block() {
    Capture::Filters filters;
    filters.push_back(expressions_.parse_filter(nullptr));
    for (auto& filter : parse_filters()) filters.push_back(std::move(filter));
    Block block = parse_closed_body("endfilter");
    return std::make_unique<Capture>(std::nullopt, std::move(filters), std::move(block));
  }

  StatementPtr parse_generation() {
    has_generation_ = true;
    return std::make_unique<Generation>(parse_closed_body("endgeneration"));
  }

  StatementPtr parse_with() {
    std::vector<With::Variable> variables;
    while (!tokens_.is(Kind::kBlockEnd)) {
      if (!variables.empty()) tokens_.expect_operator(",");
      Target target = parse_single_target(false);
      tokens_.expect_operator("=");
      variables.emplace_back(std::move(target), expressions_.parse());
    }
    std::set<std::string> names;
    for (const With::Variable& variable : variables) add_names(variable.first, names);
    expressions_.frames().enter(std::move(names));
    Block block = parse_body("endwith");
    declare(block);
    return std::make_unique<With>(std::move(variables), std::move(block));
  }

  void parse_parameters(MacroSyntax& macro) {
    tokens_.expect_operator("(");
    while (!tokens_.is_operator(")")) {
      MacroSyntax::Parameter parameter;
      parameter.name = tokens_.take_name();
      if (parameter.name == "caller" || parameter.name == "varargs" || parameter.name == "kwargs") {
        tokens_.fail(fmt::format("a parameter {} is not supported", parameter.name));
      }
      if (std::ranges::find(macro.parameters, parameter.name, &MacroSyntax::Parameter::name) !=
          macro.parameters.end()) {
        tokens_.fail(fmt::format("the parameter {} is there twice", parameter.name));
      }
      if (tokens_.skip_operator("=")) {
        parameter.otherwise = expressions_.parse();
      } else if (!macro.parameters.empty() && macro.parameters.back().otherwise != nullptr) {
        tokens_.fail("a parameter without a default follows one with a default");
      }
      macro.parameters.push_back(std::move(parameter));
      if (!tokens_.skip_operator(",")) break;
    }
    tokens_.expect_operator(")");
  }

  void parse_macro_body(MacroSyntax& macro, std::string_view end) {
    std::set<std::string> parameters = {"caller", "varargs", "kwargs"};
    for (const MacroSyntax::Parameter& parameter : macro.parameters) {
      parameters.insert(parameter.name);
    }
    const std::set<std::string> names =
        names_read_by([&] { macro.body = parse_closed_body(end, std::move(parameters)); });
    macro.takes_caller = names.contains("caller");
    macro.takes_more = names.contains("varargs");
    macro.takes_more_named = names.contains("kwargs");
  }

  StatementPtr parse_macro() {
    MacroSyntax macro;
    macro.name = tokens_.take_name();
    expressions_.frames().assign(macro.name);
    parse_parameters(macro);
    parse_macro_body(macro, "endmacro");
    return std::make_unique<MacroDefinition>(std::move(macro));
  }

  StatementPtr parse_call() {
    MacroSyntax caller;
    caller.name = "caller";
    if (tokens_.is_operator("(")) parse_parameters(caller);
    ExpressionPtr function = expressions_.parse_callee();
    CallSyntax arguments = expressions_.parse_arguments();
    parse_macro_body(caller, "endcall");
    return std::make_unique<CallBlock>(std::move(caller), std::move(function),
                                       std::move(arguments));
  }

  TokenReader tokens_;
  ExpressionParser expressions_;
  int level_ = 0;
  int loops_ = 0;  // around the statement, within the block that jumps stay in
  bool has_generation_ = false;
};

}  // namespace

ParsedTemplate parse_template(std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    throw SyntaxError(fmt::format("it has {} bytes, more than the {} that a chat template may have",
                                  source.size(), kSourceBytesMax),
                      1);
  }
  return Parser(source).parse();
}

}  // namespace terrace::jinja

#include "runtime/config/flag_reader.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/nearest_name.h"
#include "runtime/config/unknown_flag.h"

namespace terrace {
namespace {

constexpr int kHelpColumn = 44;

// CLI11's parser with the table's flags. The flags' texts go into texts_.
class Parser {
 public:
  Parser(const CommandSpec& command, std::span<const FlagSpec> flags)
      : app_(std::string(command.summary), with_operands(command)), texts_(flags.size()) {
    app_.set_help_flag();
    app_.allow_extras();
    app_.get_formatter()->column_width(kHelpColumn);
    options_.reserve(flags.size());
    for (std::size_t i = 0; i < flags.size(); ++i) options_.push_back(add(flags[i], texts_[i]));
    app_.add_flag("-h,--help")->description("Print this text")->group("Help");
  }

  CLI::App& app() { return app_; }
  bool given(std::size_t flag) const { return options_[flag]->count() > 0; }
  const std::vector<std::string>& texts(std::size_t flag) const { return texts_[flag]; }
  // Returns "on" or "off", or any other text after the switch's "=".
  std::string switch_text(std::size_t flag) const {
    const std::string text = options_[flag]->results().back();
    if (text == "true" || text == "1") return "on";
    if (text == "false" || text == "0") return "off";
    return text;
  }

 private:
  static std::string with_operands(const CommandSpec& command) {
    if (command.operands.empty()) return std::string(command.name);
    return fmt::format("{} {}{}", command.name, fmt::join(command.operands, " "),
                       command.repeats_last_operand ? "..." : "");
  }

  CLI::Option* add(const FlagSpec& flag, std::vector<std::string>& texts) {
    const std::string name = "--" + std::string(flag.name);
    CLI::Option* option = nullptr;
    if (flag.arity == FlagArity::kSwitch) {
      option = app_.add_flag(name)->description(std::string(flag.help));
    } else {
      option = app_.add_option(name, texts, std::string(flag.help));
      option->type_name(std::string(flag.value));
    }
    option->group(std::string(flag.group));
    if (flag.arity == FlagArity::kOne) {
      option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    if (flag.arity == FlagArity::kOptional) {
      option->expected(0, 1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    option->allow_extra_args(flag.arity == FlagArity::kList);
    return option;
  }

  CLI::App app_;
  std::vector<std::vector<std::string>> texts_;  // by flag; never moves once flags point into it
  std::vector<CLI::Option*> options_;
};

// Checks the arguments that belong to no flag.
void check_operands(const std::vector<std::string>& left, const CommandSpec& command,
                    std::span<const FlagSpec> flags) {
  const auto is_flag = [](const std::string& text) { return text.starts_with("-"); };
  const auto unknown = std::find_if(left.begin(), left.end(), is_flag);
  if (unknown != left.end())
    throw unknown_flag_error(unknown->substr(0, unknown->find('=')), flags);
  const std::size_t wanted = command.operands.size();
  if (left.size() < wanted) {
    throw ConfigError(
        fmt::format("{} is missing", command.operands[left.size()]),
        fmt::format("usage: {} {}; see --help", command.name, fmt::join(command.operands, " ")));
  }
  if (left.size() == wanted || (command.repeats_last_operand && wanted > 0)) return;
  throw ConfigError(fmt::format("'{}' belongs to no flag", left[wanted]),
                    "write each value after its flag; --help lists the flags");
}

// Returns the flag that an argument names, with or without a value after "="; null where it names
// none.
const FlagSpec* flag_of(const std::string& argument, std::span<const FlagSpec> flags) {
  if (!argument.starts_with("--")) return nullptr;
  const std::string name = argument.substr(2, argument.find('=') - 2);
  const auto flag = std::ranges::find(flags, name, &FlagSpec::name);
  return flag == flags.end() ? nullptr : &*flag;
}

// Refuses a flag without a value that is followed by another flag: the parser would take the next
// flag for the value.
void check_values(const std::vector<std::string>& arguments, std::span<const FlagSpec> flags) {
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    const FlagSpec* const flag = flag_of(arguments[i], flags);
    const bool wants_next = flag != nullptr && flag->arity != FlagArity::kSwitch &&
                            flag->arity != FlagArity::kOptional &&
                            arguments[i].find('=') == std::string::npos;
    if (!wants_next || flag_of(arguments[i + 1], flags) == nullptr) continue;
    throw ConfigError(
        fmt::format("{} has no value: it is followed by the flag {}", arguments[i],
                    arguments[i + 1]),
        fmt::format("give it a value; if the value looks like a flag, write it after '=': {}={}",
                    arguments[i], arguments[i + 1]));
  }
}

}  // namespace

std::string nearest_flag(std::string_view name, std::span<const FlagSpec> flags) {
  std::vector<std::string_view> names;
  names.reserve(flags.size());
  for (const FlagSpec& flag : flags) names.push_back(flag.name);
  return nearest_name(name, names);
}

bool wants_help(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--help" || argument == "-h";
  });
}

std::string flags_help(const CommandSpec& command, std::span<const FlagSpec> flags) {
  Parser parser(command, flags);
  return parser.app().help() + unbuilt_flags_help(flags);
}

std::vector<std::optional<FlagValue>> read_flags(const CommandSpec& command,
                                                 std::span<const FlagSpec> flags,
                                                 const std::vector<std::string>& arguments) {
  return read_command_line(command, flags, arguments).values;
}

CommandLine read_command_line(const CommandSpec& command, std::span<const FlagSpec> flags,
                              const std::vector<std::string>& arguments) {
  check_values(arguments, flags);
  Parser parser(command, flags);
  try {
    parser.app().parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    throw ConfigError(error.what(), fmt::format("see {} --help", command.name));
  }
  const std::vector<std::string> left = parser.app().remaining();
  check_operands(left, command, flags);

  std::vector<std::optional<FlagValue>> values(flags.size());
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (!parser.given(i)) continue;
    const bool is_optional = flags[i].arity == FlagArity::kOptional;
    if ((flags[i].arity == FlagArity::kOne || is_optional) && parser.texts(i).size() > 1) {
      throw ConfigError(fmt::format("--{} is given more than once: {}", flags[i].name,
                                    fmt::join(parser.texts(i), ", ")),
                        "give it only once");
    }
    std::vector<std::string> texts = parser.texts(i);
    if (flags[i].arity == FlagArity::kSwitch) texts = {parser.switch_text(i)};
    if (is_optional && texts.front().empty()) texts.clear();
    values[i].emplace("--" + std::string(flags[i].name), std::move(texts));
  }
  return {std::move(values), left};
}

}  // namespace terrace

#include "tests/e2e/readme_commands.h"

#include <sstream>

namespace terrace {

std::vector<std::string> commands_of(std::string_view markdown) {
  constexpr std::string_view kIndent = "    ";
  std::vector<std::string> commands;
  std::istringstream lines{std::string(markdown)};
  bool follows_blank = true;  // a block begins behind an empty line
  bool is_block = false;
  bool goes_on = false;
  for (std::string line; std::getline(lines, line);) {
    const bool is_blank = line.find_first_not_of(' ') == std::string::npos;
    is_block = line.starts_with(kIndent) && !is_blank && (is_block || follows_blank);
    follows_blank = is_blank;
    if (!is_block) continue;
    const std::string text = line.substr(kIndent.size());
    if (goes_on) {
      commands.back() += '\n' + text;
    } else {
      commands.push_back(text);
    }
    goes_on = text.ends_with('\\');
  }
  return commands;
}

}  // namespace terrace

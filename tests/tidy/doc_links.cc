#include "tests/tidy/doc_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "tests/tidy/source_text.h"

namespace terrace::tidy {
namespace {

namespace fs = std::filesystem;

// Writes spaces over the text between backticks in a line.
std::string blank_code_spans(std::string_view line) {
  std::string blanked(line);
  for (std::size_t at = blanked.find('`'); at != std::string::npos;) {
    const std::size_t end = blanked.find('`', at + 1);
    if (end == std::string::npos) break;
    std::fill(blanked.begin() + static_cast<std::ptrdiff_t>(at),
              blanked.begin() + static_cast<std::ptrdiff_t>(end) + 1, ' ');
    at = blanked.find('`', end + 1);
  }
  return blanked;
}

// Returns the targets of "[text](target)" and "[text](target "title")", and of "[name]: target".
std::vector<std::string> targets_of(const std::string& line) {
  std::vector<std::string> targets;
  for (std::size_t at = line.find("]("); at != std::string::npos; at = line.find("](", at + 2)) {
    const std::size_t end = line.find_first_of(") ", at + 2);
    targets.push_back(line.substr(at + 2, end == std::string::npos ? end : end - at - 2));
  }
  const std::size_t colon = line.find("]: ");
  if (line.starts_with('[') && colon != std::string::npos && line.find(']') == colon) {
    const std::string_view rest = trim(std::string_view(line).substr(colon + 3));
    targets.emplace_back(rest.substr(0, rest.find(' ')));
  }
  return targets;
}

bool is_elsewhere(std::string_view target) {
  return target.find("://") != std::string_view::npos || target.starts_with("mailto:");
}

// Returns the file that a target names, as a path from the root, or nothing if there is no file to
// look for.
std::optional<std::string> file_of(std::string_view document, std::string_view target) {
  const std::string_view path = target.substr(0, target.find('#'));
  if (is_elsewhere(target) || (path.empty() && !target.empty())) return std::nullopt;
  return (fs::path(document).parent_path() / path).lexically_normal().generic_string();
}

}  // namespace

Violations check_links(std::string_view path, std::string_view text,
                       const std::function<bool(const std::string&)>& exists) {
  Violations found;
  bool in_code = false;
  int number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    const bool is_fence = trim(line).starts_with("```");
    if (is_fence) in_code = !in_code;
    if (is_fence || in_code || line.starts_with("    ")) continue;
    for (const std::string& target : targets_of(blank_code_spans(line))) {
      const std::optional<std::string> file = file_of(path, target);
      if (!file.has_value()) continue;
      const bool inside = !target.empty() && !target.starts_with('/') && !file->starts_with("..");
      if (inside && exists(*file)) continue;
      found.push_back({std::string(path), number,
                       fmt::format("the link to '{}' leads nowhere; name a file of the tree, "
                                   "relative to this document",
                                   target)});
    }
  }
  return found;
}

}  // namespace terrace::tidy

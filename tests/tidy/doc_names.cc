#include "tests/tidy/doc_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>

#include "tests/tidy/source_text.h"

namespace terrace::tidy {
namespace {

namespace fs = std::filesystem;

bool is_upper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }
bool is_lower(char c) { return std::islower(static_cast<unsigned char>(c)) != 0; }
bool is_letter(char c) { return is_upper(c) || is_lower(c) || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Calls `use` with every run of characters that begins with one of `begins` and goes on with
// characters of `goes_on`.
template <class Begins, class GoesOn, class Use>
void for_each_run(std::string_view text, Begins begins, GoesOn goes_on, Use use) {
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && goes_on(text[end])) ++end;
    if (end > at && begins(text[at])) use(text.substr(at, end - at));
    at = std::max(end, at + 1);
  }
}

template <class Use>
void for_each_word(std::string_view text, Use use) {
  for_each_run(text, is_letter, [](char c) { return is_letter(c) || is_digit(c); }, use);
}

// Calls `use` with the name of every --flag, without its dashes.
template <class Use>
void for_each_flag(std::string_view text, Use use) {
  const auto goes_on = [](char c) { return is_lower(c) || is_digit(c) || c == '-'; };
  for_each_run(text, goes_on, goes_on, [&](std::string_view run) {
    if (run.starts_with("--") && run.size() > 2 && is_lower(run[2])) use(run.substr(2));
  });
}

// Returns whether a word can only be an identifier: no word of a language has _ or capitals inside.
bool is_identifier(std::string_view word) {
  if (word.find('_') != std::string_view::npos) return word.size() > 1;
  for (std::size_t at = 2; at < word.size(); ++at) {
    if (is_upper(word[at]) && is_lower(word[at - 1])) return true;
  }
  return false;
}

// Returns whether the text between backticks is the path of a file that should be in the tree.
bool is_path(std::string_view span) {
  constexpr auto kFolders = std::to_array<std::string_view>(
      {"base/", "bench/", "cmake/", "docs/", "examples/", "kernels/", "memory/", "offload/",
       "optim/", "parallel/", "python/", "runtime/", "tests/", "tools/"});
  constexpr std::string_view kNotOnePath = " *{}<>$()=\"";
  if (span.find_first_of(kNotOnePath) != std::string_view::npos) return false;
  if (std::any_of(span.begin(), span.end(), is_upper)) return false;  // as in tests/NAME
  const bool in_folder = std::any_of(kFolders.begin(), kFolders.end(),
                                     [&](std::string_view name) { return span.starts_with(name); });
  const std::string ending = fs::path(span).extension().string();
  return in_folder || ending == ".h" || ending == ".cc" || ending == ".cu" || ending == ".cuh";
}

// Returns whether a span stands for several paths: tests/NAME_test.cc, runs/*/metrics.jsonl.
bool is_pattern_of_paths(std::string_view span) {
  return span.find('/') != std::string_view::npos && span.find(' ') == std::string_view::npos;
}

// Returns the pieces of a line that stand between backticks.
std::vector<std::string_view> code_spans(std::string_view line) {
  std::vector<std::string_view> spans;
  for (std::size_t open = line.find('`'); open != std::string_view::npos;) {
    const std::size_t close = line.find('`', open + 1);
    if (close == std::string_view::npos) break;
    spans.push_back(line.substr(open + 1, close - open - 1));
    open = line.find('`', close + 1);
  }
  return spans;
}

// Adds a violation for each thing that a span names and that is not there.
class SpanChecker {
 public:
  SpanChecker(const SourceFile& document, const KnownNames& names,
              const std::function<bool(const std::string&)>& exists)
      : document_(document), names_(names), exists_(exists) {}

  void check(int line, std::string_view span) {
    if (is_path(span)) {
      if (!is_there(span)) add(line, "file", span);
      return;
    }
    if (is_pattern_of_paths(span)) return;
    for_each_flag(span, [&](std::string_view flag) {
      if (!names_.has_flag(flag)) add(line, "flag", flag);
    });
    for_each_word(span, [&](std::string_view word) {
      if (is_identifier(word) && !names_.has_word(word)) add(line, "identifier", word);
    });
  }

  Violations take() { return std::move(found_); }

 private:
  // A path may be written from the root, from the document's folder, or by its name alone.
  bool is_there(std::string_view path) const {
    const fs::path beside = fs::path(document_.path).parent_path() / path;
    const bool alone = path.find('/') == std::string_view::npos;
    return exists_(std::string(path)) || exists_(beside.lexically_normal().generic_string()) ||
           (alone && names_.has_word(fs::path(path).stem().string()));
  }

  void add(int line, std::string_view kind, std::string_view name) {
    found_.push_back({document_.path, line,
                      fmt::format("the {} '{}' does not exist; name one that does", kind, name)});
  }

  const SourceFile& document_;
  const KnownNames& names_;
  const std::function<bool(const std::string&)>& exists_;
  Violations found_;
};

}  // namespace

KnownNames::KnownNames(const std::vector<SourceFile>& sources) {
  for (const SourceFile& source : sources) {
    const auto add_word = [&](std::string_view word) { words_.emplace(word); };
    for_each_word(source.text, add_word);
    for_each_word(source.path, add_word);
    for_each_flag(source.text, [&](std::string_view flag) { flags_.emplace(flag); });
    // "name" between quotes, as the tables of flags have it.
    const auto goes_on = [](char c) { return is_lower(c) || is_digit(c) || c == '-' || c == '"'; };
    for_each_run(
        source.text, [](char c) { return c == '"'; }, goes_on,
        [&](std::string_view run) {
          if (run.size() > 2 && run.ends_with('"')) flags_.emplace(run.substr(1, run.size() - 2));
        });
  }
}

bool KnownNames::has_word(std::string_view word) const {
  const auto any = [&](auto matches) { return std::any_of(words_.begin(), words_.end(), matches); };
  if (word.ends_with('_')) {
    return any([&](const std::string& known) { return known.starts_with(word); });
  }
  if (word.starts_with('_')) {
    return any([&](const std::string& known) { return known.ends_with(word); });
  }
  return words_.contains(word);
}

bool KnownNames::has_flag(std::string_view flag) const { return flags_.contains(flag); }

Violations check_names_of_document(const SourceFile& document, const KnownNames& names,
                                   const std::function<bool(const std::string&)>& exists) {
  SpanChecker checker(document, names, exists);
  bool fenced = false;
  int number = 0;
  for (const std::string_view line : split_lines(document.text)) {
    ++number;
    if (trim(line).starts_with("```")) fenced = !fenced;
    if (fenced || line.starts_with("    ")) continue;
    for (const std::string_view span : code_spans(line)) checker.check(number, span);
  }
  return checker.take();
}

}  // namespace terrace::tidy
